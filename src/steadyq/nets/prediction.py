"""What else a network can be asked: its projection of an observation, and what it predicts of those to come."""

from dataclasses import dataclass

from steadyq.nets.layers import Encoding, Executor, Layer, T


@dataclass(frozen=True)
class Projection:
    """The last hidden units before their ReLU and without noise."""

    network: Encoding

    @property
    def layers(self) -> dict[str, Layer]:
        """The network's."""
        return self.network.layers

    def wire(self, run: Executor[T], x: T) -> T:
        """Encoder, hidden layer."""
        return self.network.project(run, self.network.latent(run, x), plain=True)


@dataclass(frozen=True)
class Rollout:
    """The outputs, and from the same latent predictor(projection(latent)) of each of the next `steps`, one batch after
    another.
    """

    network: Encoding
    steps: int

    @property
    def layers(self) -> dict[str, Layer]:
        """The network's."""
        return self.network.layers

    def wire(self, run: Executor[T], x: T) -> tuple[T, T]:
        """One pass of the encoder and of the outputs, `steps` of the transition, one of projection and predictor."""
        network = self.network
        x = network.latent(run, x)
        values = network.outputs_of(run, x)
        latents: list[T] = []
        for step in range(self.steps):
            x = network.following(run, x, step)
            latents.append(x)
        return values, run.layer("predictor", network.project(run, run.together(*latents), plain=True))


@dataclass(frozen=True)
class Contrast:
    """What a contrastive loss compares: a key, or a query, which is a key through the product."""

    network: Encoding
    query: bool

    @property
    def layers(self) -> dict[str, Layer]:
        """The network's."""
        return self.network.layers

    def wire(self, run: Executor[T], x: T) -> T:
        """Encoder, projection, product."""
        x = self.network.contrasted(run, self.network.latent(run, x))
        return run.layer("contrast.product", x) if self.query else x

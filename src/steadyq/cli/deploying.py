"""Commands that take an agent out of its run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from steadyq.cli.options import parse
from steadyq.cli.terminal import OUT, check_file, say_imports_of
from steadyq.errors import UserError

if TYPE_CHECKING:
    from steadyq.run.folder import RunFolder


@dataclass(frozen=True)
class ExportOptions:
    """Write a run's agent to an ONNX file, which runs without this library, or its experience to a Minari dataset.

    The file takes observations as the environment shows them (or its frames, stacked), scales them, asks all members
    and returns actions and values; its metadata say what it expects. Needs pip install 'steadyq[onnx]'.
    The dataset holds the trajectories in the replay buffer (kept up to 32 MB, or with --record.keep-replay); `steadyq
    train ENV --replay.dataset FOLDER` learns from it. Needs pip install 'steadyq[minari]'.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder."""
    onnx: Path | None = None
    """ONNX file to write."""
    screens: bool = False
    """Atari: the file takes the emulator's own gray screens, and takes their maximum and resizes them itself."""
    minari: Path | None = None
    """Folder of the Minari dataset to write."""
    networks: Literal["acting", "online", "target", "best"] = "acting"
    """Which networks: those that acted in training, those named, or the best on the way (`evaluation.every`)."""


def export(words: list[str]) -> int:
    """Write a run's agent to an ONNX file, or its experience to a dataset: `steadyq export RUN --onnx agent.onnx`."""
    options = parse(ExportOptions, words)

    from steadyq.run.folder import RunFolder

    if options.onnx is None and options.minari is None:
        raise UserError("export needs --onnx FILE or --minari FOLDER")
    check_file("--onnx", options.onnx)
    if options.screens and options.onnx is None:
        raise UserError("--screens is what an ONNX file takes: name it with --onnx")
    folder = RunFolder(options.run)
    say_imports_of(folder.recipe)
    if options.onnx is not None:
        _export_onnx(folder, options.onnx, options.networks, options.screens)
    if options.minari is not None:
        _export_minari(folder, options.minari)
    return 0


def _export_onnx(
    folder: "RunFolder", file: Path, networks: Literal["acting", "online", "target", "best"], screens: bool
) -> None:
    from steadyq.agent import load
    from steadyq.deploy.onnx import export_onnx

    recipe = folder.recipe
    agent = load(folder.path, device="cpu", networks=networks)
    about = {"preset": recipe.preset, "protocol": recipe.protocol.name, "seed": recipe.seed, "steps": agent.step}
    if (result := folder.result) is not None:
        about |= {"mean_return": result["mean_return"], "evaluation_games": result["episodes"]}
    given = export_onnx(agent, file, about, screens)
    size = file.stat().st_size / 1e6
    OUT.print(f"wrote    {file} ({size:.1f} MB): {', '.join(given)} -> action, value", soft_wrap=True)


def _export_minari(folder: "RunFolder", out: Path) -> None:
    from steadyq.deploy.experience import export_minari

    episodes, steps = export_minari(folder, out)
    OUT.print(
        f"wrote    {out}: {episodes:,} episodes, {steps:,} steps; minari.MinariDataset({str(out / 'data')!r}) reads it",
        soft_wrap=True,
    )
    OUT.print(f"next     steadyq train {folder.recipe.env} --replay.dataset {out}", soft_wrap=True)


@dataclass(frozen=True)
class ShareOptions:
    """Put a finished run's agent into a folder for others: weights, recipe, scores, curve, video, and a card.

    `sq.load` reads the folder where the environment's package is missing too. With `--hub`
    it goes to the Hugging Face hub instead (pip install 'steadyq[hub]', then `hf auth login`).
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder."""
    to: str
    """New folder, or owner/name on the Hugging Face hub with --hub."""
    hub: bool = False
    """Upload: `--to` is a repository of the hub."""
    video: bool = True
    """Film a game for the card."""


def share(words: list[str]) -> int:
    """Put an agent with its card into a folder, or on a hub: `steadyq share RUN --to FOLDER`."""
    options = parse(ShareOptions, words)

    import tempfile

    from steadyq.deploy.share import share as make_folder
    from steadyq.deploy.share import upload
    from steadyq.run.folder import RunFolder

    say_imports_of(RunFolder(options.run).recipe)
    if not options.hub:
        for words_missing in make_folder(options.run, Path(options.to), film=options.video):
            OUT.print(words_missing, soft_wrap=True)
        OUT.print(f"wrote    {options.to}: README.md is its card; sq.load({options.to!r}) acts", soft_wrap=True)
        return 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "shared"
        for words_missing in make_folder(options.run, folder, film=options.video):
            OUT.print(words_missing, soft_wrap=True)
        OUT.print(f"uploaded {upload(folder, options.to)}", soft_wrap=True)
    return 0

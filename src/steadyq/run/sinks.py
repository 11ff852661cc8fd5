"""Copies of the metrics for other people's viewers; the JSONL file stays the truth."""

from pathlib import Path
from typing import Any

from steadyq.errors import UserError
from steadyq.recipe import Recipe


class Sinks:
    """TensorBoard by default, Weights & Biases on request; both imported only when used."""

    def __init__(self, recipe: Recipe, path: Path, step: int) -> None:
        self.board: Any = None
        self.wandb: Any = None
        if recipe.record.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(path / "tensorboard"), purge_step=step)
        if recipe.record.wandb:
            self.wandb = wandb_module().init(project="steadyq", name=path.name, config=recipe.to_dict(), resume="allow")

    def write(self, row: dict[str, Any]) -> None:
        """Pass on one row."""
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        if self.board:
            for name, value in numbers.items():
                self.board.add_scalar(name, value, row["step"])
        if self.wandb:
            self.wandb.log(numbers, step=row["step"])

    def finish(self, result: dict[str, Any]) -> None:
        """Pass on the evaluation."""
        if self.board:
            self.board.add_scalar("evaluation/mean_return", result["mean_return"], result["steps"])
        if self.wandb:
            self.wandb.summary["mean_return"] = result["mean_return"]

    def close(self) -> None:
        """Flush."""
        if self.board:
            self.board.close()
        if self.wandb:
            self.wandb.finish()


def wandb_module() -> Any:
    """The wandb package, or one line saying how to get it."""
    try:
        import wandb
    except ImportError:
        raise UserError("record.wandb needs the extra: pip install 'steadyq[wandb]'") from None
    return wandb

"""The paper's tables recomputed from its own per-game numbers, and every printed aggregate held against them.

Printed values, sources and explanations are data (`published/*.csv`); this module only computes and compares.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from steadyq.scores.published import Array, Published, atari100k, procgen, public_runs, published_rows
from steadyq.scores.statistics import slice_mean, trimmed_mean
from steadyq.scores.tables import Cell, Table, Value

Status = Literal["as defined", "another definition", "not reproduced"]
METRICS = {"above_human": "# > human", "best": "# best", "mean": "mean", "median": "median", "iqm": "IQM"}


@dataclass(frozen=True)
class Aggregates:
    """One algorithm's summary over the 26 Atari games; both IQMs are over per-game means."""

    above_human: int
    best: int
    mean: float
    median: float
    iqm: float
    iqm_slice: float


@dataclass(frozen=True)
class Finding:
    """One printed number of the paper beside what its own per-game scores give."""

    tables: str
    benchmark: str
    row: str  # the algorithm as printed; for a bold mark, the game
    metric: str
    printed: str
    recomputed: Value  # by the first definition tried
    definition: str | None  # the definition that gives the printed value, None if none does
    status: Status
    explanation: str  # empty when reproduced as defined


def aggregates(corrected: bool = False) -> dict[str, Aggregates]:
    """Return every algorithm's Atari-100K aggregates from per-game scores."""
    published = atari100k(corrected)
    human = np.array(list(published.high.values()))
    best = _best(published)
    found = {}
    for column in published.scores:
        values = published.normalised(column)
        found[column] = Aggregates(
            above_human=int((published.raw(column) > human).sum()),
            best=int(best[column].sum()),
            mean=float(values.mean()),
            median=float(np.median(values)),
            iqm=float(trimmed_mean(values)),
            iqm_slice=float(slice_mean(values)),
        )
    return found


def table1(corrected: bool = False) -> Table:
    """Atari-100K aggregates of all twelve algorithms, the IQM by each definition in its own column."""
    columns = (
        "Algorithm",
        "# > human",
        "# best",
        "mean",
        "median",
        "IQM games",
        "IQM [6:19]",
        "IQM runs",
        "printed IQM",
    )
    runs = public_runs(corrected)
    printed = {row["column"]: float(row["printed"]) for row in _printed("atari100k") if row["metric"] == "iqm"}
    values: list[list[Value]] = []
    for column, each in aggregates(corrected).items():
        summary = [each.above_human, each.best, each.mean, each.median, each.iqm, each.iqm_slice]
        values.append([*summary, runs[column].iqm if column in runs else None, printed[column]])
    rows = _mark_columns(values)
    names = [_name(atari100k(), column, corrected) for column in atari100k().scores]
    notes = [
        "* highest of its column. IQM games: 25 % trimmed mean of the 26 game means. IQM [6:19]: mean of "
        "sorted[6:19] of the same, 6 games dropped below and 7 above. IQM runs: pooled over runs x games from a public "
        "per-run file; it cannot be recomputed from game means, and a dash says that no such file is known. BBF's file "
        "holds other runs than its printed scores.",
        "The printed IQM column mixes these definitions; `check` says which is which.",
    ]
    if corrected:
        notes.append(_corrected_note())
    return Table(
        title="Table 1. Atari-100K, human-normalised, recomputed from per-game scores" + _corrected_title(corrected),
        columns=columns,
        rows=tuple((Cell(name), *row) for name, row in zip(names, rows, strict=True)),
        notes=tuple(notes),
    )


def table2() -> Table:
    """Procgen aggregates for every combination of constants and clipping, beside the printed ones."""
    rows = []
    for column in procgen().scores:
        name = _name(procgen(), column)
        for label, values in _procgen_variants(column).items():
            cells = (float(values.mean()), float(np.median(values)), float(trimmed_mean(values)))
            rows.append((Cell(name), Cell(label), *map(Cell, cells)))
        printed = {row["metric"]: float(row["printed"]) for row in _printed("procgen") if row["column"] == column}
        rows.append((Cell(name), Cell("as printed"), *(Cell(printed[m], digits=2) for m in ("mean", "median", "iqm"))))
    return Table(
        title="Table 2. Procgen (easy, 200 levels), min-max normalised, recomputed from per-game scores",
        columns=("Algorithm", "constants, clipping", "mean", "median", "IQM"),
        rows=tuple(rows),
        notes=(
            "Appendix: the benchmark paper's appendix C. Code: its authors' plotting code, where Jumper starts at 1 "
            "and Leaper at 1.5. Clipped: limited to [0, 1]. At 16 games both game-mean IQMs are the same.",
            _procgen_mean_note(),
        ),
    )


def table5(corrected: bool = False) -> Table:
    """Per-game Atari-100K scores with the computed maxima marked and the aggregates below."""
    published = atari100k(corrected)
    best = _best(published)
    columns = list(published.scores)
    rows: list[tuple[Cell, ...]] = []
    for index, game in enumerate(published.games):
        constants = (Cell(published.low[game], 1), Cell(published.high[game], 1))
        scores = (Cell(published.scores[c][game], 1, best=bool(best[c][index])) for c in columns)
        rows.append((Cell(game), *constants, *scores))
    summary = aggregates(corrected)
    lines: dict[str, tuple[Value, Value, Callable[[Aggregates], Value]]] = {
        "# > human": (0, 0, lambda each: each.above_human),
        "# best": (0, 0, lambda each: each.best),
        "mean": (0.0, 1.0, lambda each: each.mean),
        "median": (0.0, 1.0, lambda each: each.median),
        "IQM games": (0.0, 1.0, lambda each: each.iqm),
        "IQM [6:19]": (0.0, 1.0, lambda each: each.iqm_slice),
    }
    for label, (random, human, pick) in lines.items():
        rows.append((Cell(label), Cell(random), Cell(human), *(Cell(pick(summary[c])) for c in columns)))
    notes = ["* highest of its row among the algorithms; a tie marks each. Aggregates are of human-normalised scores."]
    notes += [f"{f.row}: {f.explanation}" for f in findings() if f.metric == "bold" and f.explanation]
    if corrected:
        notes.append(_corrected_note())
    return Table(
        title="Table 5. Atari-100K per game, recomputed maxima" + _corrected_title(corrected),
        columns=("Game", "Random", "Human", *(published.sources[c].printed_name for c in columns)),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def table7(constants: Literal["appendix", "code"] = "appendix") -> Table:
    """Per-game Procgen test scores with their normalised values."""
    published = procgen(constants)
    raw = {column: published.raw(column) for column in published.scores}
    norm = {column: published.normalised(column) for column in published.scores}
    best = _best(published)
    rows = []
    for index, game in enumerate(published.games):
        scores = [Cell(float(raw[c][index]), 1, best=bool(best[c][index])) for c in raw]
        bounds = [Cell(published.low[game], 1), Cell(published.high[game], 1)]
        rows.append((Cell(game), *scores, *bounds, *(Cell(float(norm[c][index])) for c in norm)))
    return Table(
        title=f"Table 7. Procgen per game (easy, 200 levels), {constants} constants",
        columns=("Game", "PPO", "Ours", "R_min", "R_max", "PPO normalised", "Ours normalised"),
        rows=tuple(rows),
        notes=("* higher of the two.", *_procgen_notes(published)),
    )


def sources_table() -> Table:
    """What each published column really is, where it comes from and how far it was checked."""
    rows = []
    for published in (atari100k(), procgen()):
        for each in published.sources.values():
            detail = each.what + (f"; {each.note}" if each.note else "")
            cells = (published.benchmark, each.printed_name or each.column, each.seeds or "-", each.verified)
            rows.append(tuple(map(Cell, (*cells, detail, each.source))))
    return Table(
        title="Published columns and their sources",
        columns=("Benchmark", "Column", "Seeds", "Verified", "What it is", "Source"),
        rows=tuple(rows),
        notes=(
            "Verified: compared cell by cell with the public source; partly: some cells differ, or only a summary "
            "could be compared; no: no equal source found.",
        ),
    )


def findings() -> list[Finding]:
    """Compare every printed aggregate and every bold mark with what the per-game scores give."""
    found = []
    for published, tried in ((atari100k(), _atari_tried), (procgen(), _procgen_tried)):
        for row in _printed(published.benchmark):
            values = tried(row["column"], row["metric"])
            first, *others = values
            definition = next((name for name in (first, *others) if _rounds_to(values[name], row["printed"])), None)
            status: Status = "as defined" if definition == first else "another definition"
            found.append(
                Finding(
                    tables=row["tables"],
                    benchmark=published.benchmark,
                    row=published.sources[row["column"]].printed_name,
                    metric=row["metric"],
                    printed=row["printed"],
                    recomputed=values[first],
                    definition=definition,
                    status=status if definition else "not reproduced",
                    explanation="" if definition == first else _explanation(published, row["column"], row["metric"]),
                )
            )
    return found + _bold_findings(atari100k())


def _bold_findings(published: Published) -> list[Finding]:
    best = _best(published)
    found = []
    for index, (game, bold) in enumerate(published.bold.items()):
        highest = [column for column in best if best[column][index]]
        right = highest == [bold]
        found.append(
            Finding(
                tables="5",
                benchmark=published.benchmark,
                row=game,
                metric="bold",
                printed=_name(published, bold),
                recomputed=", ".join(_name(published, column) for column in highest),
                definition="maximum of the row" if right else None,
                status="as defined" if right else "not reproduced",
                explanation="" if right else _explanation(published, game, "bold"),
            )
        )
    return found


def _explanation(published: Published, row: str, metric: str) -> str:
    key = {"benchmark": published.benchmark, "column": row, "metric": metric}
    for each in published_rows("explanations"):
        if key.items() <= each.items():
            return each["explanation"]
    return "Not explained."


def check() -> Table:
    """Every printed aggregate, the recomputed one, the definition that reproduces it, and why the others do not."""
    found = findings()
    rows: list[tuple[Cell, ...]] = []
    reasons: list[str] = []
    for each in found:
        if each.metric == "bold" and each.status == "as defined":
            continue  # 25 correct bold marks say nothing that the count below does not
        quantity = METRICS.get(each.metric, each.metric)
        if each.explanation:
            reasons.append(f"[{len(reasons) + 1}] {each.row}, {quantity}: {each.explanation}")
        # One digit more than the two printed for Procgen, where the third separates the variants.
        digits = 3 if each.benchmark == "procgen" else len(each.printed.partition(".")[2])
        rows.append(
            (
                Cell(each.tables.replace(" ", ",")),
                Cell(each.row),
                Cell(quantity),
                Cell(each.printed),
                Cell(each.recomputed, digits),
                Cell(each.definition or "nothing tried"),
                Cell(f"[{len(reasons)}]" if each.explanation else ""),
            )
        )
    count = {status: sum(f.status == status for f in found) for status in ("as defined", "another definition")}
    bold = sum(f.metric == "bold" for f in found)
    total = (
        f"{len(found) - bold} printed aggregates and {bold} bold marks: {count['as defined']} follow from the per-game "
        f"scores as defined, {count['another definition']} only by another definition, "
        f"{len(found) - sum(count.values())} by nothing tried. Bold marks are listed only where wrong."
    )
    return Table(
        title="Printed aggregates against the paper's own per-game scores",
        columns=("Table", "Row", "Quantity", "Printed", "Recomputed", "Reproduced by", "Note"),
        rows=tuple(rows),
        notes=(total, *reasons, *consequences()),
    )


def consequences() -> list[str]:
    """Return what the differences mean for the paper's claims, each sentence from computed numbers."""
    printed, fixed = aggregates(), aggregates(corrected=True)
    ours, bbf, storm = printed["ours"], printed["bbf"], fixed["storm"]
    iqm = {row["column"]: row["printed"] for row in _printed("atari100k") if row["metric"] == "iqm"}
    freeway = [c for c, mask in _best(atari100k(corrected=True)).items() if mask[atari100k().games.index("Freeway")]]
    return [
        f"Table 1 mixes IQM definitions. On one definition the order holds: Ours {ours.iqm:.3f}, BBF {bbf.iqm:.3f} "
        f"(trimmed mean over games); {ours.iqm_slice:.3f}, {bbf.iqm_slice:.3f} (sorted[6:19]). The printed pair "
        f"{iqm['ours']} and {iqm['bbf']} compares unlike quantities: Ours' {iqm['ours']} is below BBF's trimmed mean "
        f"{bbf.iqm:.3f}.",
        f"With STORM's Freeway at 0.0, as in its public runs, STORM has mean {storm.mean:.3f}, median "
        f"{storm.median:.3f}, {storm.above_human} games above human and {storm.best} best, and Freeway's best is "
        f"{' = '.join(_name(atari100k(), c) for c in freeway)}.",
        *_grid_notes(),
        _procgen_mean_note(),
        *_procgen_notes(procgen()),
    ]


def episode_grid(published: Published, column: str, episodes: int = 10) -> dict[str, bool]:
    """Tell for each game with a known score step whether a score can be an average over so many episodes."""
    fits = {}
    for game, quantum in published.quantum.items():
        steps = published.scores[column][game] * episodes / quantum
        fits[game] = abs(steps - round(steps)) < 1e-6
    return fits


def _grid_notes() -> list[str]:
    atari = atari100k()
    fits = episode_grid(atari, "ours")
    # Printed to one decimal, a mean over 50 episodes is off the 10-episode grid visibly only from a step of 5 on.
    coarse = [game for game, quantum in atari.quantum.items() if quantum / 50 >= 0.1]
    # Columns rounded to whole numbers fit coarse grids by rounding alone and are no control.
    fractional = [c for c in atari.scores if c != "ours" and any(v != round(v) for v in atari.scores[c].values())]
    control = [sum(episode_grid(atari, c)[game] for game in coarse) for c in fractional]
    success = {column: sum(episode_grid(procgen(), column).values()) for column in procgen().scores}
    return [
        f"{sum(fits.values())} of {len(fits)} Atari scores of Ours fit one average over 10 episodes (score steps from "
        f"the public DrQ(ε) runs). Among the {len(coarse)} games where that is informative the other columns with "
        f"decimals fit {min(control)} to {max(control)}; a mean of 5 seeds x 10 episodes would fit all by chance with "
        f"probability about {5.0 ** -len(coarse):.0e}. The text says multiple seeds.",
        f"On Procgen, {success['ours']} of the {len(procgen().quantum)} games that pay 10 or 0 read as whole numbers "
        f"for Ours (PPO: {success['ppo']}), which fits 10 test episodes; the exact 95 % interval of 6 in 10 is 2.6 to "
        f"8.8.",
    ]


def _procgen_mean_note() -> str:
    ppo, ours = _procgen_variants("ppo"), _procgen_variants("ours")
    plain, clipped = "appendix, not clipped", "appendix, clipped"
    printed = {row["column"]: row["printed"] for row in _printed("procgen") if row["metric"] == "mean"}
    return (
        f"Treated alike, PPO and Ours have mean {ppo[plain].mean():.3f} and {ours[plain].mean():.3f} without clipping, "
        f"{ppo[clipped].mean():.3f} and {ours[clipped].mean():.3f} with it; printed are {printed['ppo']} (without) and "
        f"{printed['ours']} (with)."
    )


def _procgen_notes(published: Published) -> list[str]:
    ppo, ours = published.raw("ppo"), published.raw("ours")
    games = np.array(published.games)
    close = games[(ours > ppo) & (ours - ppo < 0.25)]
    below = {column: games[published.normalised(column) < 0] for column in ("ours", "ppo")}
    return [
        f"Ours is higher on {int((ours > ppo).sum())} of {len(games)} games, by 0.2 or less on {', '.join(close)}.",
        f"Below R_min, worse than a policy that sees nothing: Ours on {', '.join(below['ours'])}; "
        f"PPO on {', '.join(below['ppo'])}.",
    ]


def _atari_tried(column: str, metric: str) -> Mapping[str, float | int]:
    """Return each definition of a metric with its value, the paper's stated one first."""
    published = atari100k()
    if column in ("random", "human"):  # the constants themselves: 0 and 1 in every game
        level = float(column == "human")
        return {"not an algorithm": 0} if metric in ("above_human", "best") else {"by construction": level}
    each, runs = aggregates()[column], public_runs().get(column)
    human = np.array(list(published.high.values()))
    tried: dict[str, float | int]
    if metric == "above_human":
        tried = {"score > human": each.above_human, "score >= human": int((published.raw(column) >= human).sum())}
    elif metric == "best":
        tried = {"maxima of the rows": each.best}
    elif metric == "iqm":
        tried = {"trimmed mean over games": each.iqm, "sorted[6:19] over games": each.iqm_slice}
    else:
        tried = {"game means": each.mean if metric == "mean" else each.median}
    if runs is not None and metric in ("mean", "median", "iqm"):
        label = "runs x games (public runs)" if metric == "iqm" else "unrounded public runs"
        tried[label] = {"mean": runs.mean, "median": runs.median, "iqm": runs.iqm}[metric]
    return tried


def _procgen_variants(column: str) -> dict[str, Array]:
    variants: dict[str, Array] = {}
    for name in ("appendix", "code"):
        published = procgen("code" if name == "code" else "appendix")
        variants[f"{name}, not clipped"] = published.normalised(column)
        variants[f"{name}, clipped"] = published.normalised(column, clip=True)
    return variants


def _procgen_tried(column: str, metric: str) -> Mapping[str, float]:
    summaries: dict[str, Callable[[Array], Array]] = {
        "mean": lambda values: np.asarray(values.mean()),
        "median": lambda values: np.asarray(np.median(values)),
        "iqm": trimmed_mean,
    }
    return {label: float(summaries[metric](values)) for label, values in _procgen_variants(column).items()}


def _rounds_to(value: float, printed: str) -> bool:
    # Half a unit of the last printed digit; the slack admits a tie in either direction.
    return abs(value - float(printed)) <= 0.5 * 10.0 ** -len(printed.partition(".")[2]) + 1e-9


def _best(published: Published) -> dict[str, Array]:
    scores = np.stack([published.raw(column) for column in published.scores])  # [column, game]
    return dict(zip(published.scores, (scores == scores.max(axis=0)).astype(np.float64), strict=True))


def _mark_columns(values: list[list[Value]]) -> list[list[Cell]]:
    columns = [[v for v in column if isinstance(v, int | float)] for column in zip(*values, strict=True)]
    return [[Cell(v, best=v == max(columns[j])) for j, v in enumerate(row)] for row in values]


def _printed(benchmark: str) -> Iterable[Mapping[str, str]]:
    return [row for row in published_rows("printed") if row["benchmark"] == benchmark]


def _name(published: Published, column: str, corrected: bool = False) -> str:
    source = published.sources[column]
    return source.name if corrected else source.printed_name


def _corrected_title(corrected: bool) -> str:
    return ", corrected" if corrected else ""


def _corrected_note() -> str:
    fixes = (
        f"{r['column']} {r['game']} {r['printed']} -> {r['corrected']} ({r['source']})"
        for r in published_rows("corrections")
    )
    return "Corrected: " + "; ".join(fixes) + "."


TABLES: dict[str, Callable[[], Table]] = {
    "table1": table1,
    "table2": table2,
    "table5": table5,
    "table7": table7,
    "check": check,
    "sources": sources_table,
}

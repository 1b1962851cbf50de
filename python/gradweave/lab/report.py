"""The demo's results as data and as a table."""

import math

from gradweave.lab import turns

# Points below DistributedDataParallel that the demo still calls as accurate. Plain training of its network has 76.0 to 82.7 %
# after 60 to 68 iterations (six seeds), and moves by up to five points within eight iterations. Whole trainings compare
# more finely (`make bench`).
ACCURATE_WITHIN = 5.0


def results(setting, contestants, predictions, recipe, workers):
    """Everything the demo found, ready for JSON. `contestants`: compute alone, DDP default, DDP tuned, then schemes;
    `predictions`: {scheme: what the simulator printed}."""
    reference, default, tuned = contestants[:3]
    rows = []
    for contestant in contestants:
        predicted = predictions.get(contestant.name)
        measured_ms = 1e3 * turns.iteration_seconds(contestant)
        row = {"name": contestant.name, "measured_ms": measured_ms,
               "segments_ms": [1e3 * seconds for seconds in contestant.segment_seconds],
               "exposed_ms": measured_ms - 1e3 * turns.iteration_seconds(reference),
               "over_compute": 1 / turns.ratio(contestant, reference)[0],
               "speedup_over_default": turns.ratio(contestant, default),
               "speedup_over_tuned": turns.ratio(contestant, tuned),
               "accuracy": contestant.accuracy, "loss": contestant.loss, "test_loss": contestant.test_loss}
        if predicted:
            row["predicted_ms"] = predicted["iteration_us"] / 1e3
            row["prediction_error"] = row["predicted_ms"] / measured_ms - 1
            row["predicted"] = {key: predicted[key] for key in ("exposed_us", "updates_per_iteration", "staleness_max",
                                                               "lower_bound_us", "lower_bound", "extra_bytes")}
        rows.append(row)
    return {"setting": {
                "links": setting.kind, "job": recipe.kind.name, "workers": workers, "coverage_rate": setting.coverage(),
                "bits_per_second": setting.bits_per_second, "compute_ms": 1e3 * setting.compute_s,
                "parameter_bytes": setting.parameter_bytes, **setting.costs,
                "fit_residual": setting.residual, "optimizer": recipe.optimizer,
                "learning_rate": recipe.learning_rate, "momentum": recipe.momentum if recipe.optimizer == "sgd" else None,
                "batch_size": recipe.batch_size, "seed": recipe.seed,
                "samples": default.iterations * recipe.batch_size * workers},
            "contestants": rows, "recommended": recommended(rows)}


def recommended(rows):
    """The name of the fastest method that is as accurate as DistributedDataParallel in this run, within
    ACCURATE_WITHIN points."""
    needed = rows[1]["accuracy"] - ACCURATE_WITHIN
    accurate = [row for row in rows[1:] if row["accuracy"] >= needed and math.isfinite(row["loss"])]
    return min(accurate, key=lambda row: row["measured_ms"])["name"]


def text(found, output):
    """The results as lines for people."""
    setting, rows = found["setting"], found["contestants"]
    optimizer = f"{setting['optimizer']}, learning rate {setting['learning_rate']:g}"
    if setting["momentum"]:
        optimizer += f", momentum {setting['momentum']:g}"
    lines = [
        f"{setting['job']}: {setting['workers']} workers, {setting['parameter_bytes'] / 1e6:.1f} MB of parameters, batch "
        f"{setting['batch_size']} each, {optimizer}",
        f"{setting['links']} link of {setting['bits_per_second'] / 1e6:.0f} Mb/s: coverage rate "
        f"{setting['coverage_rate']:.2f} (communication {setting['coverage_rate'] * setting['compute_ms']:.0f} ms, "
        f"compute {setting['compute_ms']:.0f} ms)", ""]
    lines += _aligned([_header()] + [_cells(row) for row in rows])
    best = next(row for row in rows if row["name"] == found["recommended"])
    median, low, high = best["speedup_over_default"]
    lines += ["", f"x: how many times as fast as DDP (default), median of the rounds [smallest - largest]; accuracy on the "
              f"test data after {setting['samples']} samples each; differences below {ACCURATE_WITHIN:g} points mean nothing"]
    lines += [f"fast and accurate: {best['name']}, {median:.2f} times DDP (default), {best['speedup_over_tuned'][0]:.2f} "
              f"times DDP tuned by hand, at {best['accuracy']:.1f}% accuracy (DDP {rows[1]['accuracy']:.1f}%)"]
    behind = [row for row in rows[3:] if row["measured_ms"] < best["measured_ms"]]
    lines += [f"not recommended: {row['name']} is {row['speedup_over_default'][0]:.2f} times DDP (default) but reaches "
              f"{row['accuracy']:.1f}%" for row in behind]
    lines += [f"results and traces: {output}/ (open the traces in https://ui.perfetto.dev)"]
    return "\n".join(lines)


def _header():
    return ["", "measured", "predicted", "error", "exposed", "over compute", "x DDP default", "accuracy"]


def _cells(row):
    median, low, high = row["speedup_over_default"]
    accuracy = "-" if row["accuracy"] is None else f"{row['accuracy']:.1f}%"
    communicates = row["accuracy"] is not None
    return [row["name"], f"{row['measured_ms']:.0f} ms",
            f"{row['predicted_ms']:.0f} ms" if "predicted_ms" in row else "-",
            f"{100 * row['prediction_error']:+.0f}%" if "predicted_ms" in row else "-",
            f"{max(0.0, row['exposed_ms']):.0f} ms" if communicates else "-", f"{row['over_compute']:.2f}",
            f"{median:.2f} [{low:.2f} - {high:.2f}]" if communicates else "-", accuracy]


def _aligned(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                      for column, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows]

"""`undergrowth adapt`: a personal model from a finished run, for data that was not in it."""

from __future__ import annotations

from typing import Annotated

import typer

from undergrowth.cli.output import AsJson, OutFolder, RunName, console, print_json


def adapt(
    run: RunName,
    data: Annotated[str, typer.Option(metavar="FOLDER", help="Folder or .npz file with the samples of the device.")],
    how: Annotated[
        str, typer.Option(metavar="NAME", help="fine-tune, freeze, ditto[:LAMBDA], ewc[:LAMBDA] or kd[:T[:ALPHA]].")
    ] = "fine-tune",
    file: Annotated[
        str, typer.Option("-o", "--file", metavar="PATH", help="Where to write the state dict.")
    ] = "adapted.safetensors",
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Epochs at most. (Default: personal.epochs.)")] = None,
    lr: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="Learning rate. (Default: that of the run.)")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random seed. (Default: that of the run.)")] = None,
    out: OutFolder = "runs",
    json: AsJson = False,
) -> None:
    """Adapt the model of a finished run to the samples of one device, and compare it on held-out samples.

    The folder has an .npz file with x and y, the files of the run's data set, or a folder of images for each class.

    Example: undergrowth adapt last --data mine --how ditto -o mine.safetensors
    """
    from undergrowth.report.tables import score, table
    from undergrowth.runs.new_device import adapt as adapt_run

    found = adapt_run(run, data, how, file=file, epochs=epochs, lr=lr, seed=seed, out=out)
    if json:
        print_json({
            "run": found.run, "how": found.how, "training_samples": found.training_samples,
            "test_samples": found.test_samples, "accuracies": dict(found.accuracies), "beats": found.beats,
            "file": str(found.file),
        })  # fmt: skip
        return
    screen = console()
    rows = [(model, score(accuracy)) for model, accuracy in found.accuracies.items()]
    screen.print(table(("model", f"accuracy on {found.test_samples} test samples"), rows, right=(1,)))
    beaten = [other for other, better in found.beats.items() if better]
    verdict = f"beats the {' and the '.join(beaten)} model" if beaten else "beats neither of the others"
    screen.print(f"the adapted model {verdict}; its state dict is in {found.file}")

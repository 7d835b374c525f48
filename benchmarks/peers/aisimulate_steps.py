"""What AISimulate's estimator says of single steps; runs in AISimulate's own environment.

    VENV/bin/python aisimulate_steps.py < cases.json > steps.json

A case names a model, a parallelism and a step; a step in ms by operation comes back, or why there is none.
`benchmarks/vs_aisimulate.py` compares flashpoint with it.
"""

import functools
import json
import sys
from pathlib import Path

import aisimulate_core
from aisimulate_core.sdk.rust_engine_step import ForwardPassPerfModelConfig, RustForwardPassPerfModel

SYSTEMS = Path(aisimulate_core.__file__).parent / "systems"


@functools.cache
def model_of(settings):
    """The estimator of a model on a machine; `systems` is a folder of tables inside the package."""
    options = json.loads(settings)
    if "systems" in options:
        options["systems_paths"] = (str(SYSTEMS / options.pop("systems")),)
    return RustForwardPassPerfModel.best_available(ForwardPassPerfModelConfig(**options))


def step(case):
    """One decode step of `batch` sequences, or a prefill of `rows` tokens, each behind `context` tokens."""
    settings, batch, context, rows = case["settings"], case["batch"], case["context"], case.get("rows")
    try:
        model = model_of(json.dumps(settings, sort_keys=True))
        if rows is None:
            operations = model.static_phase_diagnostics(
                batch_size=batch, context_length=context, prefill=False
            )
        else:
            operations = model.static_phase_diagnostics(
                batch_size=batch, context_length=context + rows, prefix=context, prefill=True
            )
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    return {
        "version": model.diagnostics()["provenance"]["config"]["backend_version"],
        "operations": [[o["name"].split("_", 1)[1], o["latency_ms"]] for o in operations],
        "floors": [(o["details"]["sol"] or {}).get("latency_ms") for o in operations],
    }


if __name__ == "__main__":
    json.dump([step(case) for case in json.load(sys.stdin)], sys.stdout)

"""How long an account and a calibration take, beside dp_accounting's own accountant.

    python benchmarks/accounting.py [--json]

Every row is measured in this process, caches emptied before each repetition; the best of three
counts. `over_reference` is the time divided by that of dp_accounting's PLD accountant (interval
1e-4) for an ordinary subsampled Gaussian of 1000 steps, measured in the same run.
"""

import argparse
import json
import platform
import resource
import time

import dp_accounting as dpa
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from graphveil.privacy import _pld, _rdp
from graphveil.privacy.accounting import calibrate, price
from graphveil.privacy.events import SampledGaussianDpEvent, repeated

STEPS = 1000
ACCOUNTS = {  # rate, noise multiplier, altered, steps, delta
    "plain step": (0.3, 4.0, 0, STEPS, 1e-5),
    "one layer, K=7": (0.109961, 16.0, 7, STEPS, 1e-6),
    "two layers, K=10": (0.05, 220.0, 110, STEPS, 1e-6),
    "altered 5000": (0.01, 1000.0, 5000, STEPS, 1e-6),
    "altered 5000, little noise": (0.5, 1.0, 5000, STEPS, 1e-6),
    "rate 1e-6": (1e-6, 0.6, 0, STEPS, 1e-12),
    "a million steps": (0.01, 16.0, 7, 1_000_000, 1e-6),
}
CALIBRATIONS = {"plain step": (0.3, 0), "one layer, K=7": (0.1, 7), "two layers, K=10": (0.05, 110)}


def best_of_three(work):
    times, result = [], None
    for _ in range(3):
        for cached in (
            _rdp.sampled_gaussian,
            _rdp._curve,
            _rdp.revealed_count,
            _rdp.revealed_shifts,
            _pld.loss_range,
            _pld._laws,
            _pld._support,
        ):
            cached.cache_clear()
        start = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - start)
    return min(times), result


def reference():
    event = dpa.PoissonSampledDpEvent(0.01, dpa.GaussianDpEvent(1.0))
    return PLDAccountant(value_discretization_interval=1e-4).compose(event, STEPS).get_epsilon(1e-6)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    as_json = parser.parse_args().json
    reference_seconds, _ = best_of_three(reference)
    rows = {}
    for name, (rate, noise, altered, steps, delta) in ACCOUNTS.items():
        step = SampledGaussianDpEvent(rate=rate, noise_multiplier=noise, altered=altered)
        seconds, priced = best_of_three(lambda: price(repeated(step, steps), delta))  # noqa: B023
        rows[f"account: {name}"] = (seconds, f"epsilon {priced.epsilon:.4g}")
    for name, (rate, altered) in CALIBRATIONS.items():

        def run(noise, rate=rate, altered=altered):
            step = SampledGaussianDpEvent(rate=rate, noise_multiplier=noise, altered=altered)
            return repeated(step, STEPS)

        seconds, noise = best_of_three(
            lambda: calibrate(run, epsilon=8.0, delta=1e-5, safe=1e7, risky=1e-2)
        )
        rows[f"calibrate: {name}"] = (seconds, f"noise {noise:.4g}")
    result = {
        "machine": platform.processor() or platform.machine(),
        "reference_seconds": reference_seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "rows": {
            name: {"seconds": s, "over_reference": s / reference_seconds, "answer": answer}
            for name, (s, answer) in rows.items()
        },
    }
    if as_json:
        print(json.dumps(result))
        return
    print(f"dp_accounting, plain step, {STEPS} steps: {reference_seconds:.3f} s")
    for name, row in result["rows"].items():
        ratio = f"{row['over_reference']:6.2f} x"
        print(f"{name:38s} {row['seconds']:7.3f} s  {ratio}  {row['answer']}")
    print(f"peak memory {result['peak_mib']:.0f} MiB")


if __name__ == "__main__":
    main()

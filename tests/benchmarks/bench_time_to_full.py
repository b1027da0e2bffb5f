"""How right the time to full is: simulated growth under noise, far beyond what the tests hold."""

from __future__ import annotations

import numpy as np

from memprof.views.time_to_full import StepLevels, time_to_full

GIB, MIB = 1 << 30, 1 << 20
STEPS, UNTIL, RATE, SEEDS = 4000, 3000, 4 * MIB, 30


def noise(kind: str, size: float, seed: int) -> np.ndarray:
    chance = np.random.default_rng(seed)
    if kind == "gaussian":
        return chance.normal(0, size, STEPS)
    if kind == "exponential":
        return chance.exponential(size, STEPS)
    return np.where(chance.random(STEPS) < 0.05, chance.uniform(0, 20 * size, STEPS), 0)


def main() -> None:
    """A row for each kind and size of noise; sizes are in steps of growth."""
    print("noise        size  exact  of them off by more than a tenth  worst  'before'  too late")
    total = wrong_in_all = 0
    for kind in ("gaussian", "exponential", "spikes"):
        for size in (0, 1, 5, 20, 50):
            exact = wrong = before = late = 0
            worst = 0.0
            for seen in (300, 900, 1800):
                for seed in range(SEEDS):
                    steps = np.arange(STEPS, dtype=float)
                    held = (10 * GIB + RATE * steps + noise(kind, size * RATE, seed)).round()
                    room = 12 * GIB + RATE * (UNTIL - 512)
                    full = int(np.argmax(held + 2 * GIB >= room))
                    levels = StepLevels(
                        steps[:seen], held[:seen], held[:seen] + 2 * GIB, 1e9 + steps[:seen] * 3e5
                    )
                    found = time_to_full("cuda:0", levels, room)
                    left = full - (seen - 1)
                    if found is None or left <= 0:
                        continue
                    if not found.exact:
                        before += 1
                        late += found.full_step < full
                        continue
                    error = abs(found.steps_left - left) / left
                    exact, wrong, worst = exact + 1, wrong + (error > 0.1), max(worst, error)
            total, wrong_in_all = total + exact, wrong_in_all + wrong
            print(f"{kind:12} {size:4} {exact:6} {wrong:33} {worst:6.1%} {before:9} {late:10}")
    print(f"in all {total} exact answers, {wrong_in_all} off by more than a tenth")


if __name__ == "__main__":
    main()

"""A matrix in memory
==================

Pick the 16 of 64 pixels that explain most of the variation of handwritten digits.

Run: python examples/01_in_memory.py [columns]
"""

import sys

from sklearn.datasets import load_digits

from rgcss_dask import GCSS, RGCSS, plots


def main(k: int = 16) -> None:
    X = load_digits().data
    train, test = X[:1200], X[1200:]
    for selector in (GCSS(k, center=True), RGCSS(k, center=True), RGCSS(k, lam="cv", center=True)):
        picked = selector.fit(train)
        print(f"{selector}: lambda {picked.lam_:.4g}, {100 * picked.score(test):.2f} % of new rows explained")
    chosen = {int(pixel): rank for rank, pixel in enumerate(picked.selected_, start=1)}
    print(f"\nPixels in the order they were picked; {picked.selection_}")
    for row in range(8):
        print(" ".join(f"{chosen.get(8 * row + column, '.'):>3}" for column in range(8)))
    plots.picks(picked, image_shape=(8, 8))
    plots.path(picked)
    rebuilt = picked.inverse_transform(picked.transform(test))
    print(f"\nRoot mean square error of rebuilt pixels (0 to 16): {((rebuilt - test) ** 2).mean() ** 0.5:.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

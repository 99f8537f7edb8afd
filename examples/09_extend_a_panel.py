"""A panel that is extended
========================

Three measurements are taken already. Which three more explain most of the remaining variation?

Run: python examples/09_extend_a_panel.py [more]
"""

import sys

from sklearn.datasets import load_breast_cancer

import rgcss_dask as rg

PANEL = ["mean radius", "mean texture", "mean smoothness"]


def main(more: int = 3) -> None:
    moments = rg.scan(load_breast_cancer(as_frame=True).data, progress=False)
    k = len(PANEL) + more
    given = rg.select(moments, len(PANEL), include=PANEL, center=True, scale="std")
    # Swaps exchange added columns only; included columns stay.
    extended = rg.select(moments, k, include=PANEL, center=True, scale="std", refine=True)
    anew = rg.select(moments, k, center=True, scale="std", refine=True)
    added = [name for name in extended.names if name not in PANEL]
    print(f"The panel: {given.sentence}")
    print(f"With {', '.join(added)}: {extended.sentence}")
    print(f"Chosen anew, {', '.join(anew.names)}: {anew.sentence}")
    extended.plot().set_title("the panel, extended")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

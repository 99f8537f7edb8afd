"""Neurons of a network
====================

Which neurons of a layer explain the others? Activations are a tall matrix: a row for each token or image, a column
for each neuron. The picked neurons are kept, all others are rebuilt from them, and the network continues with the
rebuilt layer.

Run: python examples/12_neurons.py [neurons]

This page uses a small network of scikit-learn, so that it runs anywhere. Layers of PyTorch models are recorded, out
of core, by ``rgcss_dask.record_activations``:

.. code-block:: python

   rg.record_activations(model, batches, "neurons.zarr", layers="encoder.layer.*.intermediate", keep="attention_mask")
   rg.select("neurons.zarr", 154, center=True)

``python -m examples.benchmarks.neurons`` does so with all 9,216 neurons of a sentence model. What the model loses
with the picks, and what was left out, is described in ``examples/benchmarks/NEURONS.md``.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

import rgcss_dask as rg


def neurons(network: MLPClassifier, X: np.ndarray) -> np.ndarray:
    """Return the activations of the hidden layer."""
    return np.maximum(X @ network.coefs_[0] + network.intercepts_[0], 0.0)


def accuracy(network: MLPClassifier, hidden: np.ndarray, y: np.ndarray) -> float:
    """Return the accuracy of the network with these activations of its hidden layer."""
    return float(((hidden @ network.coefs_[1] + network.intercepts_[1]).argmax(axis=1) == y).mean())


def rebuilt(picked: rg.Selection, moments: rg.Moments, hidden: np.ndarray) -> np.ndarray:
    """Return all neurons, rebuilt from the picked ones."""
    full = (hidden - picked.mu)[:, picked.columns] @ picked.weights(moments) + picked.mu
    full[:, picked.columns] = hidden[:, picked.columns]
    return full


def main(size: int = 256) -> dict[str, list[float]]:
    """Train, pick from the training rows, and test the network on other rows."""
    X, y = load_digits(return_X_y=True)
    X = X / 16
    half = len(X) // 2
    network = MLPClassifier(size, max_iter=60, random_state=0, tol=1e-2).fit(X[:half], y[:half])
    moments, hidden = rg.scan(neurons(network, X[:half]), progress=False), neurons(network, X[half:])
    shares, rng = (0.02, 0.05, 0.1, 0.2, 0.4), np.random.default_rng(0)
    large = np.argsort(-(moments.mean**2 + moments.spread**2))
    found: dict[str, list[float]] = {"picked": [], "largest": [], "random": []}
    for share in shares:
        k = round(share * size)
        ways = {"picked": None, "largest": large[:k].tolist(), "random": rng.choice(size, k, replace=False).tolist()}
        for way, columns in ways.items():
            picked = rg.select(moments, k, center=True, include=columns or ())
            found[way].append(accuracy(network, rebuilt(picked, moments, hidden), y[half:]))
        print(f"{k} of {size} neurons: " + ", ".join(f"{way} {found[way][-1]:.3f}" for way in found))
    _, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for way, scores in found.items():
        ax.plot(100 * np.array(shares), scores, marker="o", label=way)
    ax.axhline(accuracy(network, hidden, y[half:]), linestyle="--", color="grey", label="all neurons")
    ax.set(xlabel="neurons kept, %", ylabel="accuracy on other rows", title="The others are rebuilt from them")
    ax.legend()
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    plt.show()

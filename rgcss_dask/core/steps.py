"""The steps of one pick, each taken by a few threads side by side that wait for each other in compiled code.

For a thousand columns a step takes some ten microseconds: less than waking a thread, or handing over the GIL.

All that `take` calls is in this file: by its date Numba tells whether the machine code it has kept is still right.
"""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.extending import intrinsic
from numpy.typing import NDArray

from rgcss_dask.core.kernels import LINE, compiled, copied_into_compiled, part_of_compiled

Array = NDArray[np.float64]

# Every step is cut into so many parts, whatever the number of threads, so that the bits do not depend on it.
PARTS = 8
# Rows of G multiplied at once.
_ROWS = 6
# Picks for which the rows of the factors are widened at once: reading rows with gaps is slow, and so is moving them.
_ROOM = 32
# Looks at the board, some ten nanoseconds each, before other programs may have the CPU.
_PATIENCE = 5000
# Looks before the part of another thread is done by this one.
_LATE = 200
# The steps: columns of H and R, products with G whole or as a factor, adding up the parts of those, or products from
# a column of G^2, and the scores.
COLUMN, PRODUCT, FACTOR_PRODUCT, ADD_UP, FACTOR_ADD_UP, SHARED_PRODUCT, SCORES, NONE = range(8)
# Places in `State.now`: the column looked at, whether a picked column counts no longer, how many picks are before this
# one in whole vectors, the number of this one, for how many there is room in the rows of the factors, and how many
# vectors to multiply by G, an even number.
COLUMN_AT, DROPS, PAST, PICK, WIDTH, VECTORS = range(6)


class State(NamedTuple):
    """What the threads share: the arrays of one path, and where it is."""

    matrix: Array  # G (n, n), or a factor of it (m, n)
    now: NDArray[np.int64]  # (6,)
    lam: float
    mask: Array  # (n,): which columns count in the loss
    g: Array  # (n,): column of G
    h: Array  # (n,): column of H
    r: Array  # (n,): column of R
    masked: Array  # (vectors, n): what to multiply by G, for a path the entries of h and r that count
    Y: Array  # (n * k,): the factors of the picks, for each part in rows that widen with them, see `_widened`
    L: Array  # (k, k): the picked rows of Y, with the roots of the alphas on the diagonal: L L' = G_SS + lam I
    weights: Array  # (5, k): how much each factor counts in h and r, and then in H x, H y and R x
    dots: Array  # (parts, 2, k): Y'x and Y'y, with x and y the masked h and r
    partial_squares: Array  # (parts, 2)
    squares: Array  # (2,): x'x and x'y
    sums: Array  # (parts, vectors, n): what each part adds to the product
    product: Array  # (vectors, n): G times those
    G_Y: Array  # (n * k,): G times the factors, kept as those are; empty if no column of G^2 is shared
    twice: Array  # (n,): the shared column of G^2
    eta: Array  # (n,)
    rho: Array  # (n,)
    diag_h: Array  # (n,)
    diag_r: Array  # (n,)

    @classmethod
    def of(cls, matrix: Array, k: int, *, lam: float = 0.0, vectors: int = 2, shares: bool = False) -> State:
        """Make the arrays for k picks from G or a factor of it; all columns count, and nothing is picked.

        ``shares`` says whether products with G come from columns of G^2 that other paths share.
        """
        n, k = matrix.shape[1], room_for(k)
        matrix = matrix.view(np.ndarray)
        matrix.flags.writeable = False  # of matrices that can be written and those that cannot, one kind is compiled
        L = _zeros(k, k)
        np.fill_diagonal(L, 1.0)
        g, h, r, twice, eta, rho, diag_h, diag_r = _zeros(8, n)
        return cls(
            matrix=matrix,
            now=np.array([0, 0, 0, 0, 0, vectors]),
            lam=lam,
            mask=np.ones(n),
            g=g,
            h=h,
            r=r,
            masked=_zeros(vectors, n),
            Y=_zeros(n * k),
            L=L,
            weights=_zeros(5, k),
            dots=_zeros(PARTS, 2, k),
            partial_squares=_zeros(PARTS, 2),
            squares=_zeros(2),
            sums=_zeros(PARTS, vectors, 0 if shares else n),
            product=_zeros(vectors, n),
            G_Y=_zeros(n * k if shares else 0),
            twice=twice,
            eta=eta,
            rho=rho,
            diag_h=diag_h,
            diag_r=diag_r,
        )

    def factors(self, picks: int) -> Array:
        """Return Y', the factors of so many picks, (picks, n); zero for those that have not changed anything."""
        whole = np.zeros((picks, len(self.h)))
        width = int(self.now[WIDTH])
        made = min(picks, width)
        for part in range(PARTS):
            start, stop = _rows.py_func(len(self.h), part)
            first = _first.py_func(self, part)
            rows = self.Y[first : first + (stop - start) * width].reshape(stop - start, width)
            whole[:made, start:stop] = rows[:, :made].T
        return whole


def whole_vectors(picks: int) -> int:
    """Round a number of picks up to what is read at once; the factors of those not yet made are zero."""
    return _rounded(picks, 2 * LINE)


def room_for(picks: int) -> int:
    """Return for how many picks there is room in the factors."""
    return _rounded(picks, _ROOM)


def _rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def board() -> NDArray[np.int64]:
    """Return where threads find the next step: its turn, what it is, and the end; then who does which of its parts.

    For each part the last turn in which a thread has taken it, and the last in which it was done.
    """
    return _zeros(1 + PARTS, LINE).view(np.int64)


def _zeros(*shape: int) -> Array:
    """Return zeros that begin with a cache line: a vector that lies in two of them takes two reads."""
    room = np.zeros(math.prod(shape) + LINE)
    start = -room.ctypes.data // 8 % LINE
    return room[start : start + math.prod(shape)].reshape(shape)


@compiled
def take(board: NDArray[np.int64], me: int, threads: int, step: int, state: State, scores: bool) -> None:
    """Take a step together with those threads that assist, and on request that for the scores right after.

    Threads that are late are not waited for. If this is not the first thread, assist in every step until the end.
    """
    leads = me == 0  # one function for both: each that Python calls is compiled with all that it calls
    turn, now = (0, step) if leads else _awaited(board, 0)
    if step == COLUMN:
        _weigh_factors(state)
    while now != NONE:
        if leads:
            turn = _announced(board, now)
        for part in range(PARTS * me // threads, PARTS if leads else PARTS * (me + 1) // threads):
            if leads and part >= PARTS // threads:
                _wait_a_little(board, turn, part)
            _do(board, turn, now, state, part)
        if leads:
            _wait_for_all(board, turn)
            now = _next(now, scores)
        else:
            turn, now = _awaited(board, turn)
    if leads:
        _conclude(state, step, scores)


@part_of_compiled
def _conclude(state: State, step: int, scores: bool) -> None:
    """Do what one thread does alone when a step was taken."""
    if step == COLUMN:
        _weigh_products(state)
    if scores:
        state.now[WIDTH] = _width_for(state)
        _append(state)


@part_of_compiled
def _next(step: int, scores: bool) -> int:
    """Return the step that belongs right after this one."""
    if step == PRODUCT:
        return ADD_UP
    if step == FACTOR_PRODUCT:
        return FACTOR_ADD_UP
    return SCORES if scores and step != SCORES else NONE


@part_of_compiled
def _announced(board: NDArray[np.int64], step: int) -> int:
    """Show the next step to all, and return its turn."""
    board[0, 1] = step
    _fence()
    board[0, 0] += 1
    return int(board[0, 0])


@part_of_compiled
def _awaited(board: NDArray[np.int64], turn: int) -> tuple[int, int]:
    """Wait for the turn after this one; return it and its step, or NONE at the end."""
    looks = 0
    while board[0, 0] == turn and board[0, 2] == 0:
        looks = _look_away(looks)
    turn = board[0, 0]
    _fence()
    return turn, NONE if board[0, 2] != 0 else board[0, 1]


@part_of_compiled
def _wait_a_little(board: NDArray[np.int64], turn: int, part: int) -> None:
    """Wait for the thread whose part this is to take it, but not for long."""
    looks = 0
    while board[1 + part, 0] != turn and looks < _LATE:
        looks = _look_away(looks)


@part_of_compiled
def _wait_for_all(board: NDArray[np.int64], turn: int) -> None:
    """Wait until all parts are done."""
    for part in range(PARTS):
        looks = 0
        while board[1 + part, 1] != turn:
            looks = _look_away(looks)
    _fence()


def end(board: NDArray[np.int64]) -> None:
    """Let all threads go that assist or will."""
    board[0, 2] = 1


@part_of_compiled
def _do(board: NDArray[np.int64], turn: int, step: int, state: State, part: int) -> None:
    """Do a part of a step, if no other thread has taken it.

    A thread that comes late finds nothing to take, even if the others have gone on: all parts of its turn are done.
    """
    if board[1 + part, 0] != turn - 1 or not _replaced(board[1 + part].ctypes.data, turn - 1, turn):
        return
    if step == COLUMN:
        _residual_column(state, part)
    elif step == PRODUCT:
        _multiply(state, part)
    elif step == FACTOR_PRODUCT:
        _multiply_by_factor(state, part)
    elif step == SHARED_PRODUCT:
        _multiply_by_shared(state, part)
    elif step == SCORES:
        _update_scores(state, part)
    else:
        _add_up(state, part, step == ADD_UP)
    _fence()
    board[1 + part, 1] = turn


@part_of_compiled
def _look_away(looks: int) -> int:
    """Let what others write be seen; after many looks they may need this CPU to write anything."""
    _fence()
    if looks >= _PATIENCE:
        _give_way()
    return looks + 1


def _generate_fence(context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return numba.types.void(), generate


def _generate_replaced(context: Any, address: Any, before: Any, after: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], arguments[1].type.as_pointer())
        return builder.extract_value(builder.cmpxchg(place, *arguments[1:], "seq_cst", "seq_cst"), 1)

    return numba.types.boolean(*[numba.types.int64] * 3), generate


# Let what was written before be seen, and see what others have written.
_fence: Any = intrinsic(_generate_fence)
# Put ``after`` in the place of ``before``; False if another thread was first.
_replaced: Any = intrinsic(_generate_replaced)

if sys.platform == "win32":

    @part_of_compiled
    def _give_way() -> int:
        return 0
else:
    _give_way = numba.types.ExternalFunction("sched_yield", numba.types.int32())


@part_of_compiled
def _rows(n: int, part: int) -> tuple[int, int]:
    return n * part // PARTS, n * (part + 1) // PARTS


@part_of_compiled
def _triangle(n: int, part: int) -> tuple[int, int]:
    """Return the rows of one of the parts of equal area of a lower triangle."""
    start, stop = int(n * np.sqrt(part / PARTS)), int(n * np.sqrt((part + 1) / PARTS))
    return start // _ROWS * _ROWS, n if part == PARTS - 1 else stop // _ROWS * _ROWS


@part_of_compiled
def _first(state: State, part: int) -> int:
    """Return where the rows of a part begin in a factor."""
    return len(state.h) * part // PARTS * len(state.L)


@part_of_compiled
def _width_for(state: State) -> int:
    """Return how wide the factors must be for this pick."""
    return max(state.now[WIDTH], (state.now[PICK] // _ROOM + 1) * _ROOM)


@part_of_compiled
def _widened(state: State, Y: Array, part: int) -> tuple[int, int]:
    """Make the rows of a part as wide as this pick needs; return where they begin, and how wide they are.

    In place, the last one first, and zero where they are new.
    """
    start, stop = _rows(len(state.h), part)
    first, width, wider = _first(state, part), state.now[WIDTH], _width_for(state)
    if wider > width:
        for i in range(stop - start - 1, -1, -1):
            after, before = first + i * wider, first + i * width
            for j in range(wider - 1, -1, -1):
                Y[after + j] = Y[before + j] if j < width else 0.0
    return first, wider


@part_of_compiled
def _weigh_factors(state: State) -> None:
    """Find how much of each factor is in columns w of H and R."""
    t, w, part = state.now[PAST], state.now[COLUMN_AT], 0
    while w >= _rows(len(state.h), part)[1]:
        part += 1
    at = _first(state, part) + (w - _rows(len(state.h), part)[0]) * state.now[WIDTH]
    y = state.Y[at : at + t]
    for j in range(t):
        state.weights[0, j] = y[j]
    _weigh_for_r(state, state.weights[0], state.weights[1])


@part_of_compiled
def _weigh_for_r(state: State, of_h: Array, of_r: Array) -> None:
    """Find the weights that stand in R where ``of_h`` stands in H: R = G - Y (I + lam L^-1 L^-T) Y', and H = G - Y Y'.

    No eigenvalue of L L' is below lam, so that what is solved for here is not magnified.
    """
    t, lam, L, z = state.now[PAST], state.lam, state.L, of_r
    for j in range(t):
        z[j] = of_h[j]
    if lam == 0.0:
        return
    for j in range(t - 1, -1, -1):
        z[j] /= L[j, j]
        row, before, zj = L[j, :j], z[:j], z[j]
        for i in range(j):
            before[i] -= zj * row[i]
    for j in range(t):
        row, before, dot = L[j, :j], z[:j], 0.0
        for i in range(j):
            dot += row[i] * before[i]
        z[j] = (z[j] - dot) / L[j, j]
    for j in range(t):
        z[j] = of_h[j] + lam * z[j]


@part_of_compiled
def _append(state: State) -> None:
    """Make the pick a row of L."""
    pick, w = state.now[PICK], state.now[COLUMN_AT]
    for j in range(pick):
        state.L[pick, j] = state.weights[0, j]
    state.L[pick, pick] = np.sqrt(state.lam + state.h[w])


@part_of_compiled
def _weighed(weights: Array, y: Array, t: int) -> tuple[float, float]:
    """Return what past picks take from an entry of h and of r, given one row of the factors or of G times those."""
    of_h = of_r = 0.0
    for j in range(t):
        of_h += weights[0, j] * y[j]
        of_r += weights[1, j] * y[j]
    return of_h, of_r


@copied_into_compiled
def _residual_column(state: State, part: int) -> None:
    """Take column w of H and of R from column w of G and the factors of the past picks.

    On the same reading of the factors: the entries that count, x and y, and Y'x, Y'y, x'x and x'y.
    """
    t, w, drops = state.now[PAST], state.now[COLUMN_AT], state.now[DROPS]
    to_x, to_y = state.dots[part, 0], state.dots[part, 1]
    for j in range(t):
        to_x[j] = to_y[j] = 0.0
    xx = xy = 0.0
    start, stop = _rows(len(state.h), part)
    first, width = _first(state, part), state.now[WIDTH]
    for i in range(start, stop):
        at = first + (i - start) * width
        row = state.Y[at : at + t]
        of_h, of_r = _weighed(state.weights, row, t)
        h, r = state.g[i] - of_h, state.g[i] - of_r
        m = 0.0 if drops and i == w else state.mask[i]
        x, y = m * h, m * r
        state.h[i], state.r[i], state.masked[0, i], state.masked[1, i] = h, r, x, y
        xx += x * x
        xy += x * y
        if m != 0.0:
            for j in range(t):
                to_x[j] += row[j] * x
                to_y[j] += row[j] * y
    state.partial_squares[part, 0], state.partial_squares[part, 1] = xx, xy


@part_of_compiled
def _weigh_products(state: State) -> None:
    """Add up the products with x and y from their parts, and weigh the factors as H x, H y and R x need them."""
    for j in range(state.now[PAST]):
        to_x = to_y = 0.0
        for part in range(PARTS):
            to_x += state.dots[part, 0, j]
            to_y += state.dots[part, 1, j]
        state.weights[2, j], state.weights[3, j] = to_x, to_y
    _weigh_for_r(state, state.weights[2], state.weights[4])
    xx = xy = 0.0
    for part in range(PARTS):
        xx += state.partial_squares[part, 0]
        xy += state.partial_squares[part, 1]
    state.squares[0], state.squares[1] = xx, xy


@copied_into_compiled
def _update_scores(state: State, part: int) -> None:
    """Put a pick's vector into the factors, and bring eta, rho and both diagonals up to date for it.

    All in one reading of the factors.
    """
    t, w, pick, dropped = state.now[PAST], state.now[COLUMN_AT], state.now[PICK], float(state.now[DROPS])
    of_hx, of_hy, of_rx = state.weights[2], state.weights[3], state.weights[4]
    xx, xy = state.squares[0], state.squares[1]
    alpha, own = state.lam + state.h[w], state.r[w]
    root = np.sqrt(alpha)
    start, stop = _rows(len(state.h), part)
    first, width = _widened(state, state.Y, part)
    for i in range(start, stop):
        at = first + (i - start) * width
        y = state.Y[at : at + width]
        a = b = c = 0.0
        for j in range(t):
            a += of_hx[j] * y[j]
            b += of_hy[j] * y[j]
            c += of_rx[j] * y[j]
        h, r, Gx, Gy = state.h[i], state.r[i], state.product[0, i], state.product[1, i]
        Hx, Hy, Rx = Gx - a, Gy - b, Gx - c
        u = h / alpha
        v = (r - own * u) / alpha
        state.eta[i] += u * (u * xx - 2.0 * Hx) - dropped * h * h
        state.rho[i] += u * (u * xy + v * xx - Hy - Rx) - v * Hx - dropped * h * r
        state.diag_h[i] -= u * h
        state.diag_r[i] -= u * r + v * h
        y[pick] = h / root


@copied_into_compiled
def _multiply(state: State, part: int) -> None:
    """Multiply G by vectors, for some rows of its lower triangle only, and their mirror image.

    Each entry of the triangle is read once and used four times for two vectors, in both of its places: half of G is
    all that passes through memory, for any number of vectors.
    """
    start, stop = _triangle(len(state.h), part)
    vectors, X, out = state.now[VECTORS], state.masked, state.sums[part]
    for c in range(vectors):
        of = out[c]
        for j in range(stop):
            of[j] = 0.0
    whole = stop - (stop - start) % _ROWS
    for i in range(start, whole, _ROWS):
        for c in range(0, vectors, 2):
            _multiply_rows(state.matrix, X[c], X[c + 1], out[c], out[c + 1], i)
    for i in range(whole, stop):
        for c in range(0, vectors, 2):
            _multiply_row(state.matrix[i], X[c], X[c + 1], out[c], out[c + 1], i)


@copied_into_compiled
def _multiply_rows(G: Array, x: Array, y: Array, ox: Array, oy: Array, i: int) -> None:
    """Multiply six rows at once: as much arithmetic for each entry that is read as the registers have room for."""
    g0, g1, g2, g3, g4, g5 = G[i], G[i + 1], G[i + 2], G[i + 3], G[i + 4], G[i + 5]
    x0, x1, x2, x3, x4, x5 = x[i], x[i + 1], x[i + 2], x[i + 3], x[i + 4], x[i + 5]
    y0, y1, y2, y3, y4, y5 = y[i], y[i + 1], y[i + 2], y[i + 3], y[i + 4], y[i + 5]
    a0 = a1 = a2 = a3 = a4 = a5 = b0 = b1 = b2 = b3 = b4 = b5 = 0.0
    for j in range(i):
        p, q, r, s, t, u, xj, yj = g0[j], g1[j], g2[j], g3[j], g4[j], g5[j], x[j], y[j]
        a0, a1, a2, a3, a4, a5 = a0 + p * xj, a1 + q * xj, a2 + r * xj, a3 + s * xj, a4 + t * xj, a5 + u * xj
        b0, b1, b2, b3, b4, b5 = b0 + p * yj, b1 + q * yj, b2 + r * yj, b3 + s * yj, b4 + t * yj, b5 + u * yj
        ox[j] += p * x0 + q * x1 + r * x2 + s * x3 + t * x4 + u * x5
        oy[j] += p * y0 + q * y1 + r * y2 + s * y3 + t * y4 + u * y5
    for j in range(i, i + 6):  # the square on the diagonal is its own mirror image
        p, q, r, s, t, u, xj, yj = g0[j], g1[j], g2[j], g3[j], g4[j], g5[j], x[j], y[j]
        a0, a1, a2, a3, a4, a5 = a0 + p * xj, a1 + q * xj, a2 + r * xj, a3 + s * xj, a4 + t * xj, a5 + u * xj
        b0, b1, b2, b3, b4, b5 = b0 + p * yj, b1 + q * yj, b2 + r * yj, b3 + s * yj, b4 + t * yj, b5 + u * yj
    ox[i], ox[i + 1], ox[i + 2], ox[i + 3], ox[i + 4], ox[i + 5] = a0, a1, a2, a3, a4, a5
    oy[i], oy[i + 1], oy[i + 2], oy[i + 3], oy[i + 4], oy[i + 5] = b0, b1, b2, b3, b4, b5


@part_of_compiled
def _multiply_row(g: Array, x: Array, y: Array, ox: Array, oy: Array, i: int) -> None:
    a = b = 0.0
    for j in range(i):
        a += g[j] * x[j]
        b += g[j] * y[j]
        ox[j] += g[j] * x[i]
        oy[j] += g[j] * y[i]
    ox[i], oy[i] = a + g[i] * x[i], b + g[i] * y[i]


@copied_into_compiled
def _multiply_by_factor(state: State, part: int) -> None:
    """Multiply F'F by vectors, for some rows of F only: each row is read once and used twice for each vector."""
    F, vectors, X, out = state.matrix, state.now[VECTORS], state.masked, state.sums[part]
    n = F.shape[1]
    for c in range(vectors):
        of = out[c]
        for j in range(n):
            of[j] = 0.0
    start, stop = _rows(len(F), part)
    for i in range(start, stop):
        for c in range(0, vectors, 2):
            _multiply_factor_row(F[i], X[c], X[c + 1], out[c], out[c + 1])


@part_of_compiled
def _multiply_factor_row(f: Array, x: Array, y: Array, ox: Array, oy: Array) -> None:
    a = b = 0.0
    for j in range(len(f)):
        a += f[j] * x[j]
        b += f[j] * y[j]
    for j in range(len(f)):
        ox[j] += a * f[j]
        oy[j] += b * f[j]


@copied_into_compiled
def _multiply_by_shared(state: State, part: int) -> None:
    """Multiply G by the masked h and r without reading it: from its product with column w, which other paths need too.

    h and r are that column less multiples of the factors, so that G h and G r follow from products with the factors.
    What picked columns add to them is lam (g - h) and lam (h - r), since H_Sw = lam K^-1 G_Sw and R_Sw = lam K^-1 H_Sw
    with K = G_SS + lam I.
    """
    t, w, pick, drops = state.now[PAST], state.now[COLUMN_AT], state.now[PICK], state.now[DROPS]
    lam, hw, rw = state.lam, state.h[w], state.r[w]
    root = np.sqrt(lam + hw)
    start, stop = _rows(len(state.h), part)
    first, width = _widened(state, state.G_Y, part)
    for i in range(start, stop):
        at = first + (i - start) * width
        y = state.G_Y[at : at + width]
        of_h, of_r = _weighed(state.weights, y, t)
        Gh, Gr = state.twice[i] - of_h, state.twice[i] - of_r
        y[pick] = Gh / root
        if drops:
            g, h, r = state.g[i], state.h[i], state.r[i]
            Gh -= lam * (g - h) + hw * g
            Gr -= lam * (h - r) + rw * g
        state.product[0, i], state.product[1, i] = Gh, Gr


@copied_into_compiled
def _add_up(state: State, part: int, triangle: bool) -> None:
    """Add up the product from its parts for some columns; those of a triangle end with its last row."""
    n = len(state.h)
    start, stop = _rows(n, part)
    for c in range(state.now[VECTORS]):
        product = state.product[c, start:stop]
        for i in range(stop - start):
            product[i] = 0.0
        for k in range(PARTS):
            last = min(stop, _triangle(n, k)[1]) if triangle else stop
            added = state.sums[k, c, start:last]
            for i in range(last - start):
                product[i] += added[i]

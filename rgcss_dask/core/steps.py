"""The steps of one pick, each taken by a few threads side by side that wait for each other in compiled code.

For a thousand columns a step takes some ten microseconds: less than waking a thread, or handing over the GIL.
"""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.extending import intrinsic
from numpy.typing import NDArray

from rgcss_dask.core.kernels import compiled

Array = NDArray[np.float64]

# Every step is cut into so many parts, whatever the number of threads, so that the bits do not depend on it.
PARTS = 8
# Rows of G multiplied at once.
_ROWS = 6
# Numbers in a cache line.
_LINE = 8
# Picks for which the rows of the factors are widened at once: reading rows with gaps is slow, and so is moving them.
_ROOM = 32
# Looks at the board, some ten nanoseconds each, before other programs may have the CPU.
_PATIENCE = 5000
# Looks before the part of another thread is done by this one.
_LATE = 200
# The steps: columns of H and R, products with G whole or as a factor, adding up the parts of those, or products from
# a column of G^2, and the scores.
COLUMN, PRODUCT, FACTOR_PRODUCT, ADD_UP, FACTOR_ADD_UP, SHARED_PRODUCT, SCORES = range(7)
# Places in `State.now`: the column looked at, whether a picked column counts no longer, how many picks are before this
# one in whole vectors, the number of this one, and for how many there is room in the rows of the factors.
COLUMN_AT, DROPS, PAST, PICK, WIDTH = range(5)


class State(NamedTuple):
    """What the threads share: the arrays of one path, and where it is."""

    matrix: Array  # G (n, n), or a factor of it (m, n)
    now: NDArray[np.int64]  # (5,)
    lam: float
    mask: Array  # (n,): which columns count in the loss
    g: Array  # (n,): column of G
    h: Array  # (n,): column of H
    r: Array  # (n,): column of R
    masked: Array  # (2, n): the entries of h and r that count
    U: Array  # (n * k,): the factors of the picks, for each part in rows that widen with them, see `_factor`
    V: Array  # (n * k,)
    alpha: Array  # (k,)
    own: Array  # (k,)
    weights: Array  # (5, k): how much each factor counts in h and r, and then in the scores
    dots: Array  # (parts, 3, k): u_j'x, u_j'y and v_j'x, with x and y the masked h and r
    partial_squares: Array  # (parts, 2)
    squares: Array  # (2,): x'x and x'y
    sums: Array  # (parts, 2, n): what each part adds to the product
    product: Array  # (2, n): G times the masked h and r
    G_U: Array  # (n * k,): G times the factors, kept as those are; empty if no column of G^2 is shared
    G_V: Array  # (n * k,)
    twice: Array  # (n,): the shared column of G^2
    eta: Array  # (n,)
    rho: Array  # (n,)
    diag_h: Array  # (n,)
    diag_r: Array  # (n,)

    @classmethod
    def of(cls, matrix: Array, k: int, *, lam: float = 0.0, shares: bool = False) -> State:
        """Make the arrays for k picks from G or a factor of it; all columns count, and nothing is picked.

        ``shares`` says whether columns of G^2 are shared with other paths.
        """
        n, k = matrix.shape[1], _rounded(k, _ROOM)
        U, V = _zeros(2, n * k)
        G_U, G_V = _zeros(2, n * k if shares else 0)
        g, h, r, twice, eta, rho, diag_h, diag_r = _zeros(8, n)
        alpha, own = _zeros(2, k)
        alpha[:] = 1.0
        return cls(
            matrix=matrix,
            now=np.zeros(5, dtype=np.int64),
            lam=lam,
            mask=np.ones(n),
            g=g,
            h=h,
            r=r,
            masked=_zeros(2, n),
            U=U,
            V=V,
            alpha=alpha,
            own=own,
            weights=_zeros(5, k),
            dots=_zeros(PARTS, 3, k),
            partial_squares=_zeros(PARTS, 2),
            squares=_zeros(2),
            sums=_zeros(PARTS, 2, n),
            product=_zeros(2, n),
            G_U=G_U,
            G_V=G_V,
            twice=twice,
            eta=eta,
            rho=rho,
            diag_h=diag_h,
            diag_r=diag_r,
        )

    def u(self, picks: int) -> Array:
        """Return the first factor of so many picks, (n, picks); zero for those that have not changed anything."""
        whole = np.zeros((len(self.h), picks))
        made = min(picks, int(self.now[WIDTH]))
        for part in range(PARTS):
            start, stop = _rows(len(self.h), part)
            whole[start:stop, :made] = _factor(self, self.U, part)[:, :made]
        return whole


def whole_vectors(picks: int) -> int:
    """Round a number of picks up to what is read at once; the factors of those not yet made are zero."""
    return _rounded(picks, 2 * _LINE)


def _rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def board() -> NDArray[np.int64]:
    """Return where threads find the next step: its turn, what it is, and the end; then who does which of its parts.

    For each part the last turn in which a thread has taken it, and the last in which it was done.
    """
    return _zeros(1 + PARTS, _LINE).view(np.int64)


def _zeros(*shape: int) -> Array:
    """Return zeros that begin with a cache line: a vector that lies in two of them takes two reads."""
    room = np.zeros(math.prod(shape) + _LINE)
    start = -room.ctypes.data // 8 % _LINE
    return room[start : start + math.prod(shape)].reshape(shape)


@compiled
def lead(board: NDArray[np.int64], threads: int, step: int, state: State, scores: bool) -> None:
    """Take a step together with those threads that assist, and on request that for the scores right after.

    Threads that are late are not waited for.
    """
    if step == COLUMN:
        _weigh_factors(state)
    _lead(board, threads, step, state)
    if step == COLUMN:
        _weigh_products(state)
    elif step == PRODUCT:
        _lead(board, threads, ADD_UP, state)
    elif step == FACTOR_PRODUCT:
        _lead(board, threads, FACTOR_ADD_UP, state)
    if scores and step != SCORES:
        _lead(board, threads, SCORES, state)
    if scores:
        state.now[WIDTH] = _width_for(state)


@compiled
def _lead(board: NDArray[np.int64], threads: int, step: int, state: State) -> None:
    turn = board[0, 0] + 1
    board[0, 1] = step
    _fence()
    board[0, 0] = turn
    for part in range(PARTS):
        looks = 0
        while part >= PARTS // threads and board[1 + part, 0] != turn and looks < _LATE:
            looks = _look_away(looks)
        _do(board, turn, step, state, part)
    for part in range(PARTS):
        looks = 0
        while board[1 + part, 1] != turn:
            looks = _look_away(looks)
    _fence()


@compiled
def assist(board: NDArray[np.int64], me: int, threads: int, state: State) -> None:
    """Take part in every step, until the end."""
    turn = looks = 0
    while board[0, 2] == 0:
        if board[0, 0] == turn:
            looks = _look_away(looks)
        else:
            turn, looks = board[0, 0], 0
            _fence()
            step = board[0, 1]
            for part in range(PARTS * me // threads, PARTS * (me + 1) // threads):
                _do(board, turn, step, state, part)


def end(board: NDArray[np.int64]) -> None:
    """Let all threads go that assist or will."""
    board[0, 2] = 1


@compiled
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


@compiled
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

    @compiled
    def _give_way() -> int:
        return 0
else:
    _give_way = numba.types.ExternalFunction("sched_yield", numba.types.int32())


@compiled
def _rows(n: int, part: int) -> tuple[int, int]:
    return n * part // PARTS, n * (part + 1) // PARTS


@compiled
def _triangle(n: int, part: int) -> tuple[int, int]:
    """Return the rows of one of the parts of equal area of a lower triangle."""
    start, stop = int(n * np.sqrt(part / PARTS)), int(n * np.sqrt((part + 1) / PARTS))
    return start // _ROWS * _ROWS, n if part == PARTS - 1 else stop // _ROWS * _ROWS


@compiled
def _factor(state: State, room: Array, part: int) -> Array:
    """Return some rows of a factor, as wide as they are now."""
    start, stop = _rows(len(state.h), part)
    width, first = state.now[WIDTH], start * len(state.alpha)
    return room[first : first + (stop - start) * width].reshape(stop - start, width)


@compiled
def _width_for(state: State) -> int:
    """Return how wide the factors must be for this pick."""
    return max(state.now[WIDTH], (state.now[PICK] // _ROOM + 1) * _ROOM)


@compiled
def _widened(state: State, room: Array, part: int) -> Array:
    """Make some rows of a factor as wide as this pick needs, zero where they are new; in place, the last one first."""
    before = _factor(state, room, part)
    (rows, width), wider = before.shape, _width_for(state)
    first = _rows(len(state.h), part)[0] * len(state.alpha)
    after = room[first : first + rows * wider].reshape(rows, wider)
    if wider > width:
        row = np.zeros(wider)
        for i in range(rows - 1, -1, -1):
            row[:width] = before[i]
            after[i] = row
    return after


@compiled
def _weigh_factors(state: State) -> None:
    """Find how much of each past pick's u and v is in the column: alpha_j u_j[w], and r_j[w]."""
    t, w, part = state.now[PAST], state.now[COLUMN_AT], 0
    while w >= _rows(len(state.h), part)[1]:
        part += 1
    row = w - _rows(len(state.h), part)[0]
    u, v = _factor(state, state.U, part)[row], _factor(state, state.V, part)[row]
    for j in range(t):
        state.weights[0, j], state.weights[1, j] = state.alpha[j] * u[j], state.alpha[j] * v[j] + state.own[j] * u[j]


@compiled
def _residual_column(state: State, part: int) -> None:
    """Take column w of H and of R from column w of G and the factors of the past picks.

    On the same reading of the factors: the entries that count, x and y, and u_j'x, u_j'y, v_j'x, x'x and x'y.
    """
    t, w, drops = state.now[PAST], state.now[COLUMN_AT], state.now[DROPS]
    on_u, on_r = state.weights[0], state.weights[1]
    ux, uy, vx = state.dots[part, 0], state.dots[part, 1], state.dots[part, 2]
    for j in range(t):
        ux[j] = uy[j] = vx[j] = 0.0
    xx = xy = 0.0
    start, stop = _rows(len(state.h), part)
    U, V = _factor(state, state.U, part), _factor(state, state.V, part)
    for i in range(start, stop):
        u, v = U[i - start], V[i - start]
        a = b = c = 0.0
        for j in range(t):
            a += on_u[j] * u[j]
            b += on_r[j] * u[j]
            c += on_u[j] * v[j]
        h, r = state.g[i] - a, state.g[i] - (b + c)
        m = 0.0 if drops and i == w else state.mask[i]
        x, y = m * h, m * r
        state.h[i], state.r[i], state.masked[0, i], state.masked[1, i] = h, r, x, y
        xx += x * x
        xy += x * y
        if m != 0.0:
            for j in range(t):
                ux[j] += u[j] * x
                uy[j] += u[j] * y
                vx[j] += v[j] * x
    state.partial_squares[part, 0], state.partial_squares[part, 1] = xx, xy


@compiled
def _weigh_products(state: State) -> None:
    """Add up the products with x and y from their parts, and weigh them as H x, H y and R x need them."""
    t = state.now[PAST]
    on_u, also_on_u, on_r = state.weights[2], state.weights[3], state.weights[4]
    on_u[:t] = also_on_u[:t] = on_r[:t] = 0.0
    state.squares[:] = 0.0
    for part in range(PARTS):
        ux, uy, vx = state.dots[part, 0], state.dots[part, 1], state.dots[part, 2]
        for j in range(t):
            on_u[j] += state.alpha[j] * ux[j]
            also_on_u[j] += state.alpha[j] * uy[j]
            on_r[j] += state.alpha[j] * vx[j] + state.own[j] * ux[j]
        state.squares[:] += state.partial_squares[part]


@compiled
def _update_scores(state: State, part: int) -> None:
    """Put a pick's vectors u and v into the factors, and bring eta, rho and both diagonals up to date for it.

    All in one reading of the factors.
    """
    t, pick, dropped = state.now[PAST], state.now[PICK], float(state.now[DROPS])
    p, q, s = state.weights[2], state.weights[3], state.weights[4]
    xx, xy = state.squares[0], state.squares[1]
    alpha, own = state.alpha[pick], state.own[pick]
    start, stop = _rows(len(state.h), part)
    U, V = _widened(state, state.U, part), _widened(state, state.V, part)
    for i in range(start, stop):
        uj, vj = U[i - start], V[i - start]
        a = b = c = d = 0.0
        for j in range(t):
            a += p[j] * uj[j]
            b += q[j] * uj[j]
            c += s[j] * uj[j]
            d += p[j] * vj[j]
        h, r, Gx, Gy = state.h[i], state.r[i], state.product[0, i], state.product[1, i]
        Hx, Hy, Rx = Gx - a, Gy - b, Gx - (c + d)
        u = h / alpha
        v = (r - own * u) / alpha
        state.eta[i] += u * (u * xx - 2.0 * Hx) - dropped * h * h
        state.rho[i] += u * (u * xy + v * xx - Hy - Rx) - v * Hx - dropped * h * r
        state.diag_h[i] -= u * h
        state.diag_r[i] -= u * r + v * h
        uj[pick], vj[pick] = u, v


@compiled
def _multiply(state: State, part: int) -> None:
    """Multiply G by the masked h and r, for some rows of its lower triangle only, and their mirror image.

    Each entry of the triangle is read once and used four times, for h and r and for both of its places: half of G is
    all that passes through memory.
    """
    start, stop = _triangle(len(state.h), part)
    x, y, ox, oy = state.masked[0], state.masked[1], state.sums[part, 0], state.sums[part, 1]
    ox[:stop] = oy[:stop] = 0.0
    whole = stop - (stop - start) % _ROWS
    for i in range(start, whole, _ROWS):
        _multiply_rows(state.matrix, x, y, ox, oy, i)
    for i in range(whole, stop):
        _multiply_row(state.matrix[i], x, y, ox, oy, i)


@compiled
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


@compiled
def _multiply_row(g: Array, x: Array, y: Array, ox: Array, oy: Array, i: int) -> None:
    a = b = 0.0
    for j in range(i):
        a += g[j] * x[j]
        b += g[j] * y[j]
        ox[j] += g[j] * x[i]
        oy[j] += g[j] * y[i]
    ox[i], oy[i] = a + g[i] * x[i], b + g[i] * y[i]


@compiled
def _multiply_by_factor(state: State, part: int) -> None:
    """Multiply F'F by the masked h and r, for some rows of F only: each row is read once and used twice."""
    F, X, out = state.matrix, state.masked, state.sums[part]
    n = F.shape[1]
    out[:, :] = 0.0
    start, stop = _rows(len(F), part)
    for i in range(start, stop):
        f = F[i]
        a = b = 0.0
        for j in range(n):
            a += f[j] * X[0, j]
            b += f[j] * X[1, j]
        for j in range(n):
            out[0, j] += a * f[j]
            out[1, j] += b * f[j]


@compiled
def _multiply_by_shared(state: State, part: int) -> None:
    """Multiply G by the masked h and r without reading it: from its product with column w, which other paths need too.

    h and r are that column less multiples of the factors, so that G h and G r follow from products with the factors.
    What picked columns add to them is lam (g - h) and lam (h - r), since H_Sw = lam K^-1 G_Sw and R_Sw = lam K^-1 H_Sw
    with K = G_SS + lam I.
    """
    t, w, pick, drops = state.now[PAST], state.now[COLUMN_AT], state.now[PICK], state.now[DROPS]
    on_u, on_r, lam = state.weights[0], state.weights[1], state.lam
    alpha, own, hw, rw = state.alpha[pick], state.own[pick], state.h[w], state.r[w]
    start, stop = _rows(len(state.h), part)
    GU, GV = _widened(state, state.G_U, part), _widened(state, state.G_V, part)
    for i in range(start, stop):
        u, v = GU[i - start], GV[i - start]
        a = b = c = 0.0
        for j in range(t):
            a += on_u[j] * u[j]
            b += on_r[j] * u[j]
            c += on_u[j] * v[j]
        Gh, Gr = state.twice[i] - a, state.twice[i] - (b + c)
        u[pick] = Gh / alpha
        v[pick] = (Gr - own * u[pick]) / alpha
        if drops:
            g, h, r = state.g[i], state.h[i], state.r[i]
            Gh -= lam * (g - h) + hw * g
            Gr -= lam * (h - r) + rw * g
        state.product[0, i], state.product[1, i] = Gh, Gr


@compiled
def _add_up(state: State, part: int, triangle: bool) -> None:
    """Add up the product from its parts for some columns; those of a triangle end with its last row."""
    n = len(state.h)
    start, stop = _rows(n, part)
    state.product[:, start:stop] = 0.0
    for k in range(PARTS):
        last = min(stop, _triangle(n, k)[1]) if triangle else stop
        for i in range(start, last):
            state.product[0, i] += state.sums[k, 0, i]
            state.product[1, i] += state.sums[k, 1, i]

"""Numba kernels of the policies: forward passes, draws and their log probabilities. The caller validates."""

from __future__ import annotations

import math

import numpy as np

from asyncrl.acting.layouts import LAYER_NORM_EPS
from asyncrl.shm.kernel import inlined, kernel
from asyncrl.shm.views import matrix

# Tanh as an odd rational function of degree 13 over 6, between the points where it rounds to -1 and 1 (the minimax fit
# of Eigen's `ptanh`). It has no branch and no call, so a loop over it is vectorised.
_TANH_END = np.float32(7.90531110763549805)
_P1, _P3, _P5, _P7, _P9, _P11, _P13 = (
    np.float32(c)
    for c in (
        *(4.89352455891786e-03, 6.37261928875436e-04, 1.48572235717979e-05, 5.12229709037114e-08),
        *(-8.60467152213735e-11, 2.00018790482477e-13, -2.76076847742355e-16),
    )
)
_Q0, _Q2, _Q4, _Q6 = (
    np.float32(c)
    for c in (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)
)
_NORM_EPS = np.float32(LAYER_NORM_EPS)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_LOG_2 = math.log(2.0)


@inlined(fastmath={"reassoc", "contract"})
def tanh_in_place(y):  # type: ignore[no-untyped-def]
    """Tanh of every value of `y` `[n]`; absolute error below 5e-7."""
    for j in range(y.shape[0]):
        x = min(max(y[j], -_TANH_END), _TANH_END)
        s = x * x
        p = _P1 + s * (_P3 + s * (_P5 + s * (_P7 + s * (_P9 + s * (_P11 + s * _P13)))))
        y[j] = x * p / (_Q0 + s * (_Q2 + s * (_Q4 + s * _Q6)))


@inlined(fastmath={"reassoc", "contract"})
def elu_in_place(y):  # type: ignore[no-untyped-def]
    """ELU of every value of `y` `[n]`: itself, or e^y - 1 below 0; absolute error below 2e-6.

    e^y - 1 = 2 t / (1 - t) with t = tanh(y / 2), by the fit of `tanh_in_place`.
    """
    for j in range(y.shape[0]):
        x = np.float32(0.5) * (y[j] if y[j] < np.float32(0.0) else np.float32(0.0))
        x = -_TANH_END if x < -_TANH_END else x
        s = x * x
        p = x * (_P1 + s * (_P3 + s * (_P5 + s * (_P7 + s * (_P9 + s * (_P11 + s * _P13))))))
        q = _Q0 + s * (_Q2 + s * (_Q4 + s * _Q6))
        below = np.float32(2.0) * p / (q - p)
        y[j] = (np.float32(0.0) if y[j] <= np.float32(0.0) else y[j]) + below


@inlined(fastmath={"reassoc", "contract"})
def layer_forward(x, w, y):  # type: ignore[no-untyped-def]
    """Fill `y` `[outputs]` with `[x, 1] @ w`; `w` is `[inputs + 1, outputs]`; `x` may be longer than `inputs`.

    Four inputs at a time are accumulated into `y`, so the inner loop runs over contiguous outputs and is vectorised.
    """
    n_in = w.shape[0] - 1
    for j in range(w.shape[1]):  # `y[:] = w[n_in]` costs seconds of compilation, for its error message
        y[j] = w[n_in, j]
    k = 0
    while k + 4 <= n_in:
        a, b, c, d = x[k], x[k + 1], x[k + 2], x[k + 3]
        for j in range(w.shape[1]):
            y[j] += a * w[k, j] + b * w[k + 1, j] + c * w[k + 2, j] + d * w[k + 3, j]
        k += 4
    while k < n_in:
        for j in range(w.shape[1]):
            y[j] += x[k] * w[k, j]
        k += 1


@inlined(fastmath={"reassoc", "contract"})
def linear(x, w, bias, y):  # type: ignore[no-untyped-def]
    """Fill `y` `[outputs]` with `w @ x + bias`; `w` is `[outputs, inputs]`; `x` may be longer than `inputs`."""
    for j in range(w.shape[0]):
        total = bias[j]
        for k in range(w.shape[1]):
            total += x[k] * w[j, k]
        y[j] = total


@inlined(fastmath={"reassoc", "contract"})
def normalise(y, normal):  # type: ignore[no-untyped-def]
    """Fill `normal` `[n]`, which may be `y`, with `y` of mean 0 and variance 1; return 1 / the standard deviation."""
    total = np.float32(0.0)
    for j in range(y.shape[0]):
        total += y[j]
    mean = np.float32(total / y.shape[0])
    squares = np.float32(0.0)
    for j in range(y.shape[0]):
        squares += (y[j] - mean) * (y[j] - mean)
    inverse = np.float32(1.0 / math.sqrt(squares / y.shape[0] + _NORM_EPS))
    for j in range(y.shape[0]):
        normal[j] = (y[j] - mean) * inverse
    return inverse


@kernel(
    "void(float32[:, ::1], float32[::1], int64[::1], boolean, boolean, float32[:, :, ::1], float32[:, ::1])",
    fastmath={"reassoc", "contract"},
)
def mlp_forward(x, flat, sizes, relu, layer_norm, scratch, out):  # type: ignore[no-untyped-def]
    """Fill `out` `[R, sizes[-1]]` for rows `x` `[R, sizes[0]]`; `scratch` is `[2, R, widest hidden layer]`.

    The layers are separated by ReLU or tanh, before which they are normalised if `layer_norm`. The head is one scalar
    product per output.
    """
    start = 0
    last = sizes.shape[0] - 2
    source = x
    for layer in range(last):
        n_in, n_out = sizes[layer], sizes[layer + 1]
        w = matrix(flat, start, n_in + 1, n_out)
        start += (n_in + 1) * n_out
        target = scratch[layer % 2]
        for r in range(x.shape[0]):
            y = target[r, :n_out]
            layer_forward(source[r], w, y)
            if layer_norm:
                normalise(y, y)
                for j in range(n_out):
                    y[j] = y[j] * flat[start + j] + flat[start + n_out + j]
            if relu:
                for j in range(n_out):
                    y[j] = max(y[j], np.float32(0.0))
            else:
                tanh_in_place(y)
        if layer_norm:
            start += 2 * n_out
        source = target
    n_in, n_out = sizes[last], sizes[last + 1]
    w = matrix(flat, start, n_out, n_in)
    bias = flat[start + n_out * n_in : start + n_out * (n_in + 1)]
    for r in range(x.shape[0]):
        linear(source[r], w, bias, out[r])


@kernel(
    "void(float32[:, ::1], float32[::1], int64[::1], int64, "
    "float32[:, ::1], float32[:, ::1], float32[:, ::1])",
    fastmath={"reassoc", "contract"},
    cold=True,
)
def noisy_mlp_forward(x, flat, sizes, mean_count, noise, scratch, out):  # type: ignore[no-untyped-def]
    """Fill `out` `[R, sizes[-1]]` for rows `x`, with independent weight noise for every row (ReLU between layers).

    Factorised Gaussian noise (Fortunato et al. 2018, eq. 10 and 11): every layer but the first adds
    `(([x, 1] * [f(e), 1]) @ sigma) * f(e')` with f(e) = sign(e) sqrt|e|.

    Args:
        x: `[R, sizes[0]]`.
        flat: means of the layers, in the order of `mlp_forward`; from `mean_count` on their standard deviations.
        sizes: widths from the input to the head.
        mean_count: number of all means.
        noise: `[R, sum of inputs and outputs of the noisy layers]` standard normal; overwritten by f(noise).
        scratch: `[4, widest layer]`, the head included.
        out: `[R, sizes[-1]]`, filled.
    """
    last = sizes.shape[0] - 2
    for r in range(x.shape[0]):
        for k in range(noise.shape[1]):
            root = math.sqrt(abs(noise[r, k]))
            noise[r, k] = root if noise[r, k] > 0 else -root
        layer_forward(x[r], matrix(flat, 0, sizes[0] + 1, sizes[1]), scratch[0, : sizes[1]])
        start, sigma_start, drawn = (sizes[0] + 1) * sizes[1], mean_count, 0
        for layer in range(1, last + 1):
            n_in, n_out = sizes[layer], sizes[layer + 1]
            count = (n_in + 1) * n_out
            source, shaken = scratch[(layer - 1) % 2], scratch[2]
            for k in range(n_in):
                source[k] = max(source[k], np.float32(0.0))
                shaken[k] = source[k] * noise[r, drawn + k]
            factor = noise[r, drawn + n_in : drawn + n_in + n_out]
            y, z = scratch[layer % 2, :n_out], scratch[3, :n_out]
            if layer < last:
                layer_forward(source, matrix(flat, start, n_in + 1, n_out), y)
                layer_forward(shaken, matrix(flat, sigma_start, n_in + 1, n_out), z)
            else:
                y, end = out[r], n_out * n_in
                linear(source, matrix(flat, start, n_out, n_in), flat[start + end : start + count], y)
                biases = flat[sigma_start + end : sigma_start + count]
                linear(shaken, matrix(flat, sigma_start, n_out, n_in), biases, z)
            for j in range(n_out):
                y[j] += z[j] * factor[j]
            start, sigma_start, drawn = start + count, sigma_start + count, drawn + n_in + n_out


@kernel("void(float32[:, :], float64[:, ::1], float64[::1], int64, int64[::1], int64[::1], int64[::1])")
def epsilon_greedy(values, uniform, rates, repeat, held, left, action):  # type: ignore[no-untyped-def]
    """Choose the first of the largest values in every row, or begin or continue a run of one random action.

    Args:
        values: `[R, n]`, values of the actions; minus infinity if an action is forbidden.
        uniform: `[2, R]` in [0, 1): whether a run begins (below the rate), and its action; with `repeat` above 1
            `[3, R]`, the last for its length.
        rates: `[R]`, probabilities with which a run begins where none goes on.
        repeat: greatest length of a run.
        held: `[R]`, action of the run; updated.
        left: `[R]`, steps that are left of it; updated. A forbidden action is left out, and its step counts.
        action: `[R]`, filled.
    """
    n = values.shape[1]
    for r in range(values.shape[0]):
        best, allowed = 0, 0
        for j in range(n):
            if values[r, j] > values[r, best]:
                best = j
            allowed += int(values[r, j] != -np.inf)
        if left[r] == 0 and uniform[0, r] < rates[r]:
            choice = uniform[1, r] * n
            held[r] = int(choice)
            if 0 < allowed < n:
                rank, held[r] = int(min(choice / n * allowed, allowed - 1.0)), 0
                while rank > 0 or values[r, held[r]] == -np.inf:
                    rank -= int(values[r, held[r]] != -np.inf)
                    held[r] += 1
            left[r] = 1 if repeat == 1 else int(1.0 + uniform[2, r] * repeat)
        action[r] = best
        if left[r] > 0:
            left[r] -= 1
            if values[r, held[r]] != -np.inf:
                action[r] = held[r]


@kernel("float64(float32[:, ::1], int64[::1], float64[:, ::1], int64[:, ::1], float32[::1])", cold=True)
def draw_choices(logits, choices, uniform, action, log_prob):  # type: ignore[no-untyped-def]
    """Draw component c of row r as the inverse of its distribution function at `uniform[r, c]`.

    Args:
        logits: `[R, sum(choices)]`.
        choices: `[C]`, number of choices of each component.
        uniform: `[R, C]` in [0, 1).
        action: `[R, C]`, filled.
        log_prob: `[R]`, filled: the sum over the components of `logit - log sum exp logits`.

    Returns:
        Probability of a choice other than the likeliest, averaged over rows and components.
    """
    likeliest = 0.0
    for r in range(logits.shape[0]):
        row_log_prob, first = 0.0, 0
        for c in range(choices.shape[0]):
            n = choices[c]
            largest = logits[r, first]
            for j in range(1, n):
                largest = max(largest, logits[r, first + j])
            total = 0.0
            for j in range(n):
                total += math.exp(logits[r, first + j] - largest)
            threshold = uniform[r, c] * total
            # In float64, as `total`: in float32 the sum may stay below the threshold beyond the last choice allowed.
            chosen, below = 0, np.float64(math.exp(logits[r, first] - largest))
            while below <= threshold and chosen < n - 1:
                chosen += 1
                below += math.exp(logits[r, first + chosen] - largest)
            action[r, c] = chosen
            row_log_prob += np.float64(logits[r, first + chosen]) - largest - math.log(total)
            likeliest += 1.0 / total
            first += n
        log_prob[r] = row_log_prob
    return 1.0 - likeliest / (logits.shape[0] * choices.shape[0])


@kernel("void(float32[:, ::1], float32[::1], float64[::1], float32[:, ::1], float32[::1])", cold=True)
def draw_gaussian(mean, log_std, stds, draw, log_prob):  # type: ignore[no-untyped-def]
    """Turn standard normal `draw` `[R, d]` into `mean + exp(log_std) * draw` and fill `log_prob` `[R]`.

    The log density is that of the rounded float32 draw, which is stored in the row. `stds` `[d]` is scratch.
    """
    constant = 0.0
    for i in range(log_std.shape[0]):
        constant += log_std[i] + _LOG_SQRT_2PI
        stds[i] = math.exp(np.float64(log_std[i]))
    for r in range(mean.shape[0]):
        squares = 0.0
        for i in range(log_std.shape[0]):
            std = stds[i]
            draw[r, i] = mean[r, i] + std * draw[r, i]
            z = (np.float64(draw[r, i]) - mean[r, i]) / std
            squares += z * z
        log_prob[r] = -0.5 * squares - constant


@kernel("void(float32[:, ::1], float32[::1])", cold=True)
def add_squashing(latent, log_prob):  # type: ignore[no-untyped-def]
    """Subtract `sum_i log(1 - tanh(u_i)^2)` of `latent` `[R, d]` from `log_prob` `[R]`.

    It is computed as `2 (log 2 - u - softplus(-2 u))` at `|u|` (the function is even), which avoids cancellation under
    the logarithm. Both sides omit the box's constant, `sum log((high - low) / 2)`: it cancels in ratios and gradients.
    """
    for r in range(latent.shape[0]):
        total = 0.0
        for i in range(latent.shape[1]):
            u = abs(np.float64(latent[r, i]))
            total += 2.0 * (_LOG_2 - u - math.log1p(math.exp(-2.0 * u)))
        log_prob[r] -= total

# SPDX-License-Identifier: Apache-2.0
"""CuPy programs whose sizes vary, each from a seed; for compare_cupy.py and record_cupy.py. Each returns a checksum."""
import random

import cupy


def small_arrays(seed, steps=4000):
    """Element-wise work on 256 B to 16 KiB: the time is that of the calls."""
    numbers = random.Random(seed)
    sum_of_all = cupy.zeros(32)
    for _ in range(steps):
        n = 32 * numbers.randint(1, 64)
        a = cupy.arange(n, dtype=cupy.float64)
        b = a * 0.5 + 1.0
        sum_of_all += (b - a)[:32]
    return float(sum_of_all.sum())


def particles(seed, steps=60):
    """Up to 8 million keys: sort, masks, compaction, histograms."""
    numbers, random_state = random.Random(seed), cupy.random.RandomState(seed)
    kept, checksum = [], 0
    for _ in range(steps):
        n = int(2 ** numbers.uniform(18, 23))
        keys = random_state.randint(0, 1 << 20, size=n).astype(cupy.int64)
        order = cupy.argsort(keys)
        mask = keys[order] % 3 != 0
        part = keys[order][mask]
        bins = cupy.bincount(part >> 8, minlength=4096)
        kept.append(cupy.cumsum(bins))
        if len(kept) > 12:
            kept.pop(numbers.randrange(len(kept)))
        checksum += int(kept[-1][-1])
    return checksum


def spectral_flow(seed, windows=14, steps=6):
    """Vorticity of a flow by FFTs, Runge-Kutta of order 4; the grid changes from window to window."""
    numbers, random_state = random.Random(seed), cupy.random.RandomState(seed)
    n = 256
    vorticity = random_state.standard_normal((n, n))
    for _ in range(windows):
        m = 64 * numbers.randint(2, 20)
        spectrum = cupy.fft.rfft2(vorticity)
        grown = cupy.zeros((m, m // 2 + 1), dtype=cupy.complex128)
        k = min(n, m) // 2
        grown[:k, :k] = spectrum[:k, :k]
        grown[-k:, :k] = spectrum[-k:, :k]
        vorticity = cupy.fft.irfft2(grown, s=(m, m)) * (m / n) ** 2
        n = m
        kx = 1j * cupy.fft.rfftfreq(n, 1.0 / n)[None, :]
        ky = 1j * cupy.fft.fftfreq(n, 1.0 / n)[:, None]
        laplacian = (kx * kx + ky * ky).real
        inverse = cupy.where(laplacian == 0, 0, 1 / cupy.where(laplacian == 0, 1, laplacian))

        def change(w):
            spectrum = cupy.fft.rfft2(w)
            stream = -inverse * spectrum
            u = cupy.fft.irfft2(ky * stream, s=w.shape)
            v = -cupy.fft.irfft2(kx * stream, s=w.shape)
            wx = cupy.fft.irfft2(kx * spectrum, s=w.shape)
            wy = cupy.fft.irfft2(ky * spectrum, s=w.shape)
            return -(u * wx + v * wy) + 1e-3 * cupy.fft.irfft2(laplacian * spectrum, s=w.shape)

        dt = 1e-4
        for _ in range(steps):
            a = change(vorticity)
            b = change(vorticity + 0.5 * dt * a)
            c = change(vorticity + 0.5 * dt * b)
            d = change(vorticity + dt * c)
            vorticity = vorticity + dt / 6 * (a + 2 * b + 2 * c + d)
            vorticity *= 1 / (1 + 1e-3 * float(cupy.abs(vorticity).max()))
    return float(cupy.abs(vorticity).sum())


def conjugate_gradient(seed, problems=14, iterations=60):
    """Sparse systems of random size, assembled and solved one after the other; solutions of a few are kept."""
    import cupyx.scipy.sparse as sparse

    numbers, random_state = random.Random(seed), cupy.random.RandomState(seed)
    kept, checksum = [], 0.0
    for _ in range(problems):
        side = numbers.randint(80, 900)
        n = side * side
        index = cupy.arange(n)
        weight = 1 + random_state.random_sample(n)
        right, below = index[index % side != side - 1], index[: n - side]
        rows = cupy.concatenate([right, right + 1, below, below + side, index])
        columns = cupy.concatenate([right + 1, right, below + side, below, index])
        values = cupy.concatenate([-weight[right], -weight[right], -weight[below], -weight[below], 8.5 + cupy.zeros(n)])
        matrix = sparse.coo_matrix((values, (rows, columns)), shape=(n, n)).tocsr()
        del rows, columns, values
        b = random_state.standard_normal(n)
        x = cupy.zeros(n)
        r = b - matrix @ x
        p = r.copy()
        square = r @ r
        for _ in range(iterations):
            q = matrix @ p
            alpha = square / (p @ q)
            x = x + alpha * p
            r = r - alpha * q
            new = r @ r
            p = r + (new / square) * p
            square = new
        checksum += float(cupy.abs(x).sum())
        kept.append(x)
        if len(kept) > 5:
            kept.pop(numbers.randrange(len(kept)))
    return checksum


ALL = {f.__name__: f for f in (small_arrays, particles, spectral_flow, conjugate_gradient)}

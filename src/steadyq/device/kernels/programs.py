# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs, no-warn-return-any
"""Member-batched convolution: M independent networks' layers as one GPU kernel launch.

Activations are `x[member, batch, y, x, channel]` and weights `weight[member, out, in, ky, kx]`: every member is an
ordinary channels-last convolution over its own weights, so one launch serves the whole ensemble, and bias, residual
and ReLU ride in the epilogue instead of costing another pass over memory. Strides are free except the channel's.

Two ways to walk a convolution, because two things bound it:

* `tile`: implicit GEMM over output pixels, one tap at a time. Right when arithmetic rules (many channels).
* `strip`: for 3x3 at stride 1 and up to 64 channels, where the nine-fold re-reading of the input rules. A program walks
  down the image; each input row feeds three rolling accumulators (the output rows above, at and below it) and is read
  once.

The input gradient of a stride-1 convolution is such a convolution again, over the flipped and transposed weight; at
stride 2 it is a kernel of its own that computes the four parities of the input pixel together, so that no tap is
wasted.
"""

from __future__ import annotations

from steadyq.device.kernels.triton import jit, tl

__all__ = [
    "collect_kernel",
    "spread_kernel",
    "strip_kernel",
    "tile_kernel",
    "weight_strip_kernel",
    "weight_tile_kernel",
]


@jit
def _pixels(first, block: tl.constexpr, limit, width: tl.constexpr, height: tl.constexpr):
    """Decompose `block` flat pixel indices into (image, y, x) and whether they exist."""
    p = first + tl.arange(0, block)
    return p // (width * height), (p // width) % height, p % width, p < limit


@jit
def _extra(add, gate, offset, mask, has_add: tl.constexpr, has_gate: tl.constexpr):
    """What the epilogue will need, asked for early so that it arrives meanwhile."""
    more = 0.0
    passes = 1.0
    if has_add:
        more = tl.load(add + offset, mask=mask, other=0.0)
    if has_gate:
        passes = tl.load(gate + offset, mask=mask, other=0.0)
    return more, passes


@jit
def _finish(
    acc, bias, extra, out, offset, mask,
    relu: tl.constexpr, has_add: tl.constexpr, has_gate: tl.constexpr, gate_alone: tl.constexpr,
):  # fmt: skip
    """Bias, residual, ReLU, the gate of an earlier ReLU (for gradients; `gate_alone` leaves the sum's other term
    through), and the store.
    """
    value = acc + bias[None, :]
    if has_gate and gate_alone:
        value = tl.where(extra[1] > 0, value, 0.0)
    if has_add:
        value += extra[0].to(tl.float32)
    if relu:
        value = tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if has_gate and not gate_alone:
        value = tl.where(extra[1] > 0, value, 0.0)
    tl.store(out + offset, value.to(out.dtype.element_ty), mask=mask)


@jit
def tile_kernel(
    x, w, bias, add, gate, out, batch, bias_sm,
    x_sm, x_sb, x_sy, x_sx: tl.constexpr, w_sm, w_sn, w_sk, w_sy, w_sx, o_sm, o_sb, o_sy, o_sx: tl.constexpr,
    in_h: tl.constexpr, in_w: tl.constexpr, out_h: tl.constexpr, out_w: tl.constexpr,
    channels: tl.constexpr, outputs: tl.constexpr, kernel: tl.constexpr, stride: tl.constexpr,
    relu: tl.constexpr, has_bias: tl.constexpr, has_add: tl.constexpr, has_gate: tl.constexpr,
    gate_alone: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """One tile of output pixels and channels, one tap at a time: forward, and the input gradient at stride 1."""
    pid = tl.program_id(0)
    tiles_n: tl.constexpr = (outputs + block_n - 1) // block_n
    limit = batch * out_h * out_w
    tiles = tl.cdiv(limit, block_m) * tiles_n
    m = (pid // tiles).to(tl.int64)
    pid = pid % tiles
    n = (pid % tiles_n) * block_n + tl.arange(0, block_n)
    b, oy, ox, real = _pixels((pid // tiles_n) * block_m, block_m, limit, out_w, out_h)
    k = tl.arange(0, block_k)
    pad: tl.constexpr = kernel // 2
    y0 = oy * stride - pad
    x0 = ox * stride - pad
    x_at = x + m * x_sm + (b * x_sb + y0 * x_sy + x0 * x_sx)[:, None] + k[None, :]
    w_at = w + m * w_sm + k[:, None] * w_sk + n[None, :] * w_sn
    chunks: tl.constexpr = (channels + block_k - 1) // block_k
    acc = tl.zeros((block_m, block_n), tl.float32)
    for t in range(kernel * kernel * chunks):
        tap = t % (kernel * kernel)
        c = (t // (kernel * kernel)) * block_k
        ky = tap // kernel
        kx = tap % kernel
        inside = real & (y0 + ky >= 0) & (y0 + ky < in_h) & (x0 + kx >= 0) & (x0 + kx < in_w)
        a_mask = inside[:, None]
        w_mask = n[None, :] < outputs
        if channels % block_k != 0:
            a_mask = a_mask & (c + k < channels)[None, :]
            w_mask = w_mask & (c + k < channels)[:, None]
        a = tl.load(x_at + (ky * x_sy + kx * x_sx + c), mask=a_mask, other=0.0)
        if channels % block_k == 0 and outputs % block_n == 0:
            weight = tl.load(w_at + (ky * w_sy + kx * w_sx + c * w_sk))
        else:
            weight = tl.load(w_at + (ky * w_sy + kx * w_sx + c * w_sk), mask=w_mask, other=0.0)
        acc = tl.dot(a, weight, acc, input_precision=precision)
    if has_bias:
        shift = tl.load(bias + m * bias_sm + n, mask=n < outputs, other=0.0).to(tl.float32)
    else:
        shift = tl.zeros((block_n,), tl.float32)
    offset = m * o_sm + (b * o_sb + oy * o_sy + ox * o_sx)[:, None] + n[None, :]
    mask = real[:, None] & (n < outputs)[None, :]
    extra = _extra(add, gate, offset, mask, has_add, has_gate)
    _finish(acc, shift, extra, out, offset, mask, relu, has_add, has_gate, gate_alone)


@jit
def strip_kernel(
    x, w, bias, add, gate, out, batch, bias_sm,
    x_sm, x_sb, x_sy, x_sx: tl.constexpr, w_sm, w_sn, w_sk, w_sy, w_sx, o_sm, o_sb, o_sy, o_sx: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, padded: tl.constexpr,
    outputs: tl.constexpr, wide: tl.constexpr,
    relu: tl.constexpr, has_bias: tl.constexpr, has_add: tl.constexpr, has_gate: tl.constexpr,
    gate_alone: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, rows: tl.constexpr, pair: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """A strip of an image, row by row: the same passes, each input row read once."""
    pid = tl.program_id(0)
    strips: tl.constexpr = (height + rows - 1) // rows
    each: tl.constexpr = 2 if pair else 1  # output pixels per row of the product
    columns: tl.constexpr = (width + each - 1) // each
    tiles = tl.cdiv(batch * columns, block_m) * strips
    m = (pid // tiles).to(tl.int64)
    pid = pid % tiles
    first = (pid % strips) * rows
    p = (pid // strips) * block_m + tl.arange(0, block_m)
    b = p // columns
    col = (p % columns) * each
    real = p < batch * columns
    n = tl.arange(0, block_n)
    q = n // wide  # 0, or which pixel of the pair
    o = n % wide
    kept = o < outputs
    k = tl.arange(0, block_k)
    x_at = x + m * x_sm + (b * x_sb + (col - 1) * x_sx)[:, None]
    w_at = w + m * w_sm + o[None, :] * w_sn
    if pair:  # k = (source pixel of four, channel): a row's three taps for two pixels are one product
        px = k // padded
        c = k % padded
        kx = px[:, None] - q[None, :]
        x_at += (px * x_sx + c)[None, :]
        source = col[:, None] - 1 + px[None, :]
        seen = real[:, None] & (c < channels)[None, :] & (source >= 0) & (source < width)
        w_mask = (kx >= 0) & (kx < 3) & (c < channels)[:, None] & kept[None, :]
        w_at += kx * w_sx + (c * w_sk)[:, None]
        w0 = tl.load(w_at, mask=w_mask, other=0.0)
        w1 = tl.load(w_at + w_sy, mask=w_mask, other=0.0)
        w2 = tl.load(w_at + 2 * w_sy, mask=w_mask, other=0.0)
    else:
        x_at += k[None, :]
        used = k < channels
        left = (real & (col > 0))[:, None] & used[None, :]
        here = real[:, None] & used[None, :]
        right = (real & (col < width - 1))[:, None] & used[None, :]
        w_mask = used[:, None] & kept[None, :]
        w_at += (k * w_sk)[:, None]
        w00 = tl.load(w_at, mask=w_mask, other=0.0)
        w01 = tl.load(w_at + w_sx, mask=w_mask, other=0.0)
        w02 = tl.load(w_at + 2 * w_sx, mask=w_mask, other=0.0)
        w10 = tl.load(w_at + w_sy, mask=w_mask, other=0.0)
        w11 = tl.load(w_at + w_sy + w_sx, mask=w_mask, other=0.0)
        w12 = tl.load(w_at + w_sy + 2 * w_sx, mask=w_mask, other=0.0)
        w20 = tl.load(w_at + 2 * w_sy, mask=w_mask, other=0.0)
        w21 = tl.load(w_at + 2 * w_sy + w_sx, mask=w_mask, other=0.0)
        w22 = tl.load(w_at + 2 * w_sy + 2 * w_sx, mask=w_mask, other=0.0)
    if has_bias:
        shift = tl.load(bias + m * bias_sm + o, mask=kept, other=0.0).to(tl.float32)
    else:
        shift = tl.zeros((block_n,), tl.float32)
    offset = m * o_sm + (b * o_sb + col * o_sx)[:, None] + (q * o_sx + o)[None, :]
    store = real[:, None] & kept[None, :] & (col[:, None] + q[None, :] < width)
    above = tl.zeros((block_m, block_n), tl.float32)
    at = tl.zeros((block_m, block_n), tl.float32)
    for step in range(rows + 2):
        row = first - 1 + step
        inside = (row >= 0) & (row < height)
        below = tl.zeros((block_m, block_n), tl.float32)
        done = store & (row > first) & (row <= height)
        spot = offset + (row - 1) * o_sy
        extra = _extra(add, gate, spot, done, has_add, has_gate)
        if pair:
            a = tl.load(x_at + row * x_sy, mask=seen & inside, other=0.0)
            above = tl.dot(a, w2, above, input_precision=precision)
            at = tl.dot(a, w1, at, input_precision=precision)
            below = tl.dot(a, w0, below, input_precision=precision)
        else:
            # The additions put the tiles into registers: three products read them there, not in shared memory.
            a0 = tl.load(x_at + row * x_sy, mask=left & inside, other=0.0) + 0.0
            a1 = tl.load(x_at + (row * x_sy + x_sx), mask=here & inside, other=0.0) + 0.0
            a2 = tl.load(x_at + (row * x_sy + 2 * x_sx), mask=right & inside, other=0.0) + 0.0
            above = tl.dot(a0, w20, above, input_precision=precision)
            at = tl.dot(a0, w10, at, input_precision=precision)
            below = tl.dot(a0, w00, below, input_precision=precision)
            above = tl.dot(a1, w21, above, input_precision=precision)
            at = tl.dot(a1, w11, at, input_precision=precision)
            below = tl.dot(a1, w01, below, input_precision=precision)
            above = tl.dot(a2, w22, above, input_precision=precision)
            at = tl.dot(a2, w12, at, input_precision=precision)
            below = tl.dot(a2, w02, below, input_precision=precision)
        _finish(above, shift, extra, out, spot, done, relu, has_add, has_gate, gate_alone)
        above = at + 0.0  # an addition, not a move: moving an accumulator in flight would serialise the matrix unit
        at = below + 0.0


@jit
def spread_kernel(
    g, w, side, side_w, add, gate, out, batch, side_sm,
    g_sm, g_sb, g_sy, g_sx: tl.constexpr, w_sm, w_sn, w_sk, w_sy, w_sx, o_sm, o_sb, o_sy, o_sx: tl.constexpr,
    in_h: tl.constexpr, in_w: tl.constexpr, out_h: tl.constexpr, out_w: tl.constexpr,
    channels: tl.constexpr, outputs: tl.constexpr, kernel: tl.constexpr, has_side: tl.constexpr,
    has_add: tl.constexpr, has_gate: tl.constexpr, gate_alone: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Input gradient at stride 2: the 2x2 input pixels under an output pixel see it through 1, 2, 2 and 4 taps.

    `side` is the gradient at a 1x1 shortcut beside the convolution, `side_w` the shortcut's weight: one more tap.
    """
    pid = tl.program_id(0)
    half_h: tl.constexpr = (in_h + 1) // 2
    half_w: tl.constexpr = (in_w + 1) // 2
    tiles_n: tl.constexpr = (channels + block_n - 1) // block_n
    limit = batch * half_h * half_w
    tiles = tl.cdiv(limit, block_m) * tiles_n
    m = (pid // tiles).to(tl.int64)
    pid = pid % tiles
    n = (pid % tiles_n) * block_n + tl.arange(0, block_n)
    b, qy, qx, real = _pixels((pid // tiles_n) * block_m, block_m, limit, half_w, half_h)
    k = tl.arange(0, block_k)
    g_off = m * g_sm + (b * g_sb + qy * g_sy + qx * g_sx)[:, None] + k[None, :]
    g_at = g + g_off
    s_at = side + g_off
    w_at = w + m * w_sm + k[:, None] * w_sk + n[None, :] * w_sn
    s_w_at = side_w + m * side_sm + k[:, None] * channels + n[None, :]
    here = (real & (qy < out_h) & (qx < out_w))[:, None]
    right = (real & (qy < out_h) & (qx + 1 < out_w))[:, None]
    under = (real & (qy + 1 < out_h) & (qx < out_w))[:, None]
    cross = (real & (qy + 1 < out_h) & (qx + 1 < out_w))[:, None]
    even = tl.zeros((block_m, block_n), tl.float32)
    odd_x = tl.zeros((block_m, block_n), tl.float32)
    odd_y = tl.zeros((block_m, block_n), tl.float32)
    odd = tl.zeros((block_m, block_n), tl.float32)
    for c in range(0, outputs, block_k):
        a_mask = (c + k < outputs)[None, :]
        w_mask = (c + k < outputs)[:, None] & (n < channels)[None, :]
        w_c = w_at + c * w_sk
        g00 = tl.load(g_at + c, mask=here & a_mask, other=0.0) + 0.0  # into registers, as in `strip_kernel`
        if has_side:
            s00 = tl.load(s_at + c, mask=here & a_mask, other=0.0)
            s_w = tl.load(s_w_at + c * channels, mask=w_mask, other=0.0)
            even = tl.dot(s00, s_w, even, input_precision=precision)
        if kernel == 1:
            even = tl.dot(g00, tl.load(w_c, mask=w_mask, other=0.0), even, input_precision=precision)
        else:
            g01 = tl.load(g_at + g_sx + c, mask=right & a_mask, other=0.0) + 0.0
            g10 = tl.load(g_at + g_sy + c, mask=under & a_mask, other=0.0) + 0.0
            g11 = tl.load(g_at + g_sy + g_sx + c, mask=cross & a_mask, other=0.0) + 0.0
            w00 = tl.load(w_c, mask=w_mask, other=0.0)
            w01 = tl.load(w_c + w_sx, mask=w_mask, other=0.0)
            w02 = tl.load(w_c + 2 * w_sx, mask=w_mask, other=0.0)
            w10 = tl.load(w_c + w_sy, mask=w_mask, other=0.0)
            w11 = tl.load(w_c + w_sy + w_sx, mask=w_mask, other=0.0)
            w12 = tl.load(w_c + w_sy + 2 * w_sx, mask=w_mask, other=0.0)
            w20 = tl.load(w_c + 2 * w_sy, mask=w_mask, other=0.0)
            w21 = tl.load(w_c + 2 * w_sy + w_sx, mask=w_mask, other=0.0)
            w22 = tl.load(w_c + 2 * w_sy + 2 * w_sx, mask=w_mask, other=0.0)
            even = tl.dot(g00, w11, even, input_precision=precision)
            odd_x = tl.dot(g00, w12, odd_x, input_precision=precision)
            odd_y = tl.dot(g00, w21, odd_y, input_precision=precision)
            odd = tl.dot(g00, w22, odd, input_precision=precision)
            odd_x = tl.dot(g01, w10, odd_x, input_precision=precision)
            odd = tl.dot(g01, w20, odd, input_precision=precision)
            odd_y = tl.dot(g10, w01, odd_y, input_precision=precision)
            odd = tl.dot(g10, w02, odd, input_precision=precision)
            odd = tl.dot(g11, w00, odd, input_precision=precision)
    none = tl.zeros((block_n,), tl.float32)
    offset = m * o_sm + (b * o_sb + 2 * qy * o_sy + 2 * qx * o_sx)[:, None] + n[None, :]
    kept = (n < channels)[None, :]
    for odd_row in tl.static_range(2):
        for odd_col in tl.static_range(2):
            at = offset + (odd_row * o_sy + odd_col * o_sx)
            inside = real & (2 * qy + odd_row < in_h) & (2 * qx + odd_col < in_w)
            mask = inside[:, None] & kept
            extra = _extra(add, gate, at, mask, has_add, has_gate)
            upper = even if odd_col == 0 else odd_x
            lower = odd_y if odd_col == 0 else odd
            _finish(upper if odd_row == 0 else lower, none, extra, out, at, mask, False, has_add, has_gate, gate_alone)


@jit
def weight_tile_kernel(
    x, g, out, bias_out, batch,
    x_sm, x_sb, x_sy, x_sx: tl.constexpr, g_sm, g_sb, g_sy, g_sx: tl.constexpr,
    in_h: tl.constexpr, in_w: tl.constexpr, out_h: tl.constexpr, out_w: tl.constexpr,
    channels: tl.constexpr, outputs: tl.constexpr, kernel: tl.constexpr, stride: tl.constexpr,
    images: tl.constexpr, splits: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Weight and bias gradient: rows j = (ky, kx, channel), columns the outputs, summed over one of `splits` pixel
    ranges.

    A step sums over `images` images at a few neighbouring pixels, so that its addresses differ from the last step's
    by a scalar.
    """
    taps: tl.constexpr = kernel * kernel * channels
    tiles_n: tl.constexpr = (outputs + block_n - 1) // block_n
    span: tl.constexpr = block_k // images
    columns: tl.constexpr = (out_w + span - 1) // span
    tile = tl.program_id(0)
    split = tl.program_id(1)
    m = tl.program_id(2).to(tl.int64)
    j = (tile // tiles_n) * block_m + tl.arange(0, block_m)
    n = (tile % tiles_n) * block_n + tl.arange(0, block_n)
    single: tl.constexpr = channels % block_m == 0  # the tile lies within one tap
    tap = (tile // tiles_n) * block_m // channels if single else j // channels
    ky = tap // kernel - kernel // 2
    kx = tap % kernel - kernel // 2
    p = tl.arange(0, block_k)
    image = p % images
    dx = p // images
    steps = tl.cdiv(batch, images) * out_h * columns
    share = tl.cdiv(steps, splits)
    first = split * share
    last = tl.minimum(first + share, steps)
    x_at = (
        x + m * x_sm + (ky * x_sy + kx * x_sx + j % channels)[None, :] + (image * x_sb + dx * (stride * x_sx))[:, None]
    )
    g_at = g + m * g_sm + n[None, :] + (image * g_sb + dx * g_sx)[:, None]
    acc = tl.zeros((block_m, block_n), tl.float32)
    for t in range(first, last):
        ox = (t % columns) * span
        oy = (t // columns) % out_h
        b = (t // (columns * out_h)) * images
        real = (image + b < batch) & (ox + dx < out_w)
        iy = oy * stride + ky
        if single:
            ix = (ox + dx) * stride + kx
            mask = ((ix >= 0) & (ix < in_w) & real & (iy >= 0) & (iy < in_h))[:, None]
        else:
            ix = ((ox + dx) * stride)[:, None] + kx[None, :]
            mask = (ix >= 0) & (ix < in_w) & real[:, None] & ((iy >= 0) & (iy < in_h) & (j < taps))[None, :]
        a = tl.load(x_at + (b * x_sb + oy * stride * x_sy + ox * (stride * x_sx)), mask=mask, other=0.0)
        seen = real[:, None]
        if outputs % block_n != 0:
            seen = seen & (n < outputs)[None, :]
        d = tl.load(g_at + (b * g_sb + oy * g_sy + ox * g_sx), mask=seen, other=0.0)
        acc = tl.dot(tl.trans(a), d, acc, input_precision=precision)
    slot = m * splits + split
    at = out + slot * outputs * taps + n[None, :].to(tl.int64) * taps + j[:, None]
    tl.store(at, acc.to(out.dtype.element_ty), mask=(j < taps)[:, None] & (n < outputs)[None, :])
    if tile // tiles_n == 0:
        total = tl.zeros((block_k, block_n), tl.float32)
        for t in range(first, last):
            ox = (t % columns) * span
            b = (t // (columns * out_h)) * images
            seen = ((image + b < batch) & (ox + dx < out_w))[:, None] & (n < outputs)[None, :]
            at_g = g_at + (b * g_sb + (t // columns) % out_h * g_sy + ox * g_sx)
            total += tl.load(at_g, mask=seen, other=0.0).to(tl.float32)
        tl.store(bias_out + slot * outputs + n, tl.sum(total, 0).to(bias_out.dtype.element_ty), mask=n < outputs)


@jit
def weight_strip_kernel(
    x, g, out, bias_out, batch,
    x_sm, x_sb, x_sy, x_sx: tl.constexpr, g_sm, g_sb, g_sy, g_sx: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, padded: tl.constexpr,
    outputs: tl.constexpr, wide: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, rows: tl.constexpr, pair: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """The same at 3x3, stride 1: an input row meets the gradient rows above, at and below it; all nine taps stay in
    registers.
    """
    tile = tl.program_id(0)
    strip = tl.program_id(1)
    m = tl.program_id(2).to(tl.int64)
    first = strip * rows
    each: tl.constexpr = 2 if pair else 1
    columns: tl.constexpr = (width + each - 1) // each
    p = tile * block_m + tl.arange(0, block_m)
    b = p // columns
    col = (p % columns) * each
    real = p < batch * columns
    n = tl.arange(0, block_n)
    q = n // wide
    o = n % wide
    kept = o < outputs
    k = tl.arange(0, block_k)
    x_at = x + m * x_sm + (b * x_sb + (col - 1) * x_sx)[:, None]
    g_at = g + m * g_sm + (b * g_sb + col * g_sx)[:, None] + (q * g_sx + o)[None, :]
    g_mask = real[:, None] & kept[None, :] & (col[:, None] + q[None, :] < width)
    total = tl.zeros((block_m, block_n), tl.float32)
    s00 = tl.zeros((block_k, block_n), tl.float32)
    s10 = tl.zeros((block_k, block_n), tl.float32)
    s20 = tl.zeros((block_k, block_n), tl.float32)
    if pair:
        px = k // padded
        c = k % padded
        x_at += (px * x_sx + c)[None, :]
        source = col[:, None] - 1 + px[None, :]
        seen = real[:, None] & (c < channels)[None, :] & (source >= 0) & (source < width)
    else:
        x_at += k[None, :]
        used = k < channels
        left = (real & (col > 0))[:, None] & used[None, :]
        here = real[:, None] & used[None, :]
        right = (real & (col < width - 1))[:, None] & used[None, :]
        s01 = tl.zeros((block_k, block_n), tl.float32)
        s02 = tl.zeros((block_k, block_n), tl.float32)
        s11 = tl.zeros((block_k, block_n), tl.float32)
        s12 = tl.zeros((block_k, block_n), tl.float32)
        s21 = tl.zeros((block_k, block_n), tl.float32)
        s22 = tl.zeros((block_k, block_n), tl.float32)
    for step in range(rows):  # input row `row` is tap ky of gradient row `row + 1 - ky`
        row = first + step
        inside = row < height
        d0 = tl.load(g_at + (row + 1) * g_sy, mask=g_mask & (row + 1 < height), other=0.0)
        d1 = tl.load(g_at + row * g_sy, mask=g_mask & inside, other=0.0)
        d2 = tl.load(g_at + (row - 1) * g_sy, mask=g_mask & (row > 0) & inside, other=0.0)
        total += d1.to(tl.float32)
        if pair:
            a = tl.trans(tl.load(x_at + row * x_sy, mask=seen & inside, other=0.0))
            s00 = tl.dot(a, d0, s00, input_precision=precision)
            s10 = tl.dot(a, d1, s10, input_precision=precision)
            s20 = tl.dot(a, d2, s20, input_precision=precision)
        else:
            a0 = tl.trans(tl.load(x_at + row * x_sy, mask=left & inside, other=0.0))
            a1 = tl.trans(tl.load(x_at + (row * x_sy + x_sx), mask=here & inside, other=0.0))
            a2 = tl.trans(tl.load(x_at + (row * x_sy + 2 * x_sx), mask=right & inside, other=0.0))
            s00 = tl.dot(a0, d0, s00, input_precision=precision)
            s01 = tl.dot(a1, d0, s01, input_precision=precision)
            s02 = tl.dot(a2, d0, s02, input_precision=precision)
            s10 = tl.dot(a0, d1, s10, input_precision=precision)
            s11 = tl.dot(a1, d1, s11, input_precision=precision)
            s12 = tl.dot(a2, d1, s12, input_precision=precision)
            s20 = tl.dot(a0, d2, s20, input_precision=precision)
            s21 = tl.dot(a1, d2, s21, input_precision=precision)
            s22 = tl.dot(a2, d2, s22, input_precision=precision)
    # each pixel of a pair saw all three taps: two partial sums
    slot = ((m * tl.num_programs(0) + tile) * tl.num_programs(1) + strip) * each + q
    kind = out.dtype.element_ty
    tl.store(bias_out + slot * outputs + o, tl.sum(total, 0).to(kind), mask=kept)
    at = out + ((slot * outputs + o) * (9 * channels))[None, :]
    if pair:
        kx = px[:, None] - q[None, :]
        at += kx * channels + c[:, None]
        mask = (kx >= 0) & (kx < 3) & (c < channels)[:, None] & kept[None, :]
        tl.store(at, s00.to(kind), mask=mask)
        tl.store(at + 3 * channels, s10.to(kind), mask=mask)
        tl.store(at + 6 * channels, s20.to(kind), mask=mask)
    else:
        at += k[:, None]
        mask = used[:, None] & kept[None, :]
        tl.store(at, s00.to(kind), mask=mask)
        tl.store(at + channels, s01.to(kind), mask=mask)
        tl.store(at + 2 * channels, s02.to(kind), mask=mask)
        tl.store(at + 3 * channels, s10.to(kind), mask=mask)
        tl.store(at + 4 * channels, s11.to(kind), mask=mask)
        tl.store(at + 5 * channels, s12.to(kind), mask=mask)
        tl.store(at + 6 * channels, s20.to(kind), mask=mask)
        tl.store(at + 7 * channels, s21.to(kind), mask=mask)
        tl.store(at + 8 * channels, s22.to(kind), mask=mask)


@jit
def _collect(part, out, m, first, slots, size, block_s: tl.constexpr, block: tl.constexpr):
    i = first + tl.arange(0, block)
    slot = tl.arange(0, block_s)
    acc = tl.zeros((block_s, block), tl.float32)
    for s in range(0, slots, block_s):
        mask = (s + slot < slots)[:, None] & (i < size)[None, :]
        acc += tl.load(part + m * slots * size + (s + slot)[:, None] * size + i[None, :], mask=mask, other=0.0)
    tl.store(out + m * size + i, tl.sum(acc, 0).to(out.dtype.element_ty), mask=i < size)


@jit
def collect_kernel(
    part, part_bias, out, out_bias, slots, size, outputs, block_s: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Add up the partial weight and bias gradients, in a fixed order."""
    tile = tl.program_id(0)
    m = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(size, block)
    if tile < tiles:
        _collect(part, out, m, tile * block, slots, size, block_s, block)
    else:
        _collect(part_bias, out_bias, m, (tile - tiles) * block, slots, outputs, block_s, block)

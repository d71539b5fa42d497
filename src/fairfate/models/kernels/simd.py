"""The vector type the kernels are written in: sixteen 32-bit floats side by side.

LLVM turns it into two AVX2 registers, one AVX-512 register or four NEON registers. Every operation
is IEEE-exact and lane-wise, multiply-adds are explicitly fused and nothing is reordered, so a kernel
that keeps the order of its sums gives the same bits whatever the lanes stand for (hidden units, rows
or whole models).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.core.datamodel import models, register_default
from numba.extending import intrinsic

from fairfate.models.rows import LANES

_FLOAT = ir.FloatType()
_INT = ir.IntType(32)


class _Vector(types.Type):  # type: ignore[misc]  # numba ships no type information
    """Numba's view of ``width`` floats in a register."""

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__(name=f"Float32x{width}")


@register_default(_Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]  # as above
    def __init__(self, manager: Any, kind: _Vector) -> None:
        super().__init__(manager, kind, ir.VectorType(_FLOAT, kind.width))


_vec = _Vector(LANES)
_quad = _Vector(4)
_VEC = ir.VectorType(_FLOAT, LANES)
_QUAD = ir.VectorType(_FLOAT, 4)


def _constant(value: float) -> ir.Constant:
    return ir.Constant(_VEC, [float(np.float32(value))] * LANES)


def _group(count: int, kind: Any = _vec) -> Any:
    return types.UniTuple(kind, count)


def _members(builder: Any, group: Any) -> list[Any]:
    return [builder.extract_value(group, number) for number in range(group.type.count)]


def _grouped(builder: Any, members: list[Any]) -> Any:
    group = ir.Constant(ir.ArrayType(members[0].type, len(members)), ir.Undefined)
    for number, member in enumerate(members):
        group = builder.insert_value(group, member, number)
    return group


def _moved(builder: Any, index: Any, step: Any, number: int) -> Any:
    return builder.add(index, builder.mul(step, index.type(number)))


def _load(builder: Any, address: Any) -> Any:
    return builder.load(builder.bitcast(address, _VEC.as_pointer()), align=4)


def _store(builder: Any, vector: Any, address: Any) -> None:
    builder.store(vector, builder.bitcast(address, _VEC.as_pointer()), align=4)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


def _pick(builder: Any, vector: Any, lanes: list[int]) -> Any:
    """The given lanes of a vector, as a shorter (or longer) vector."""
    undefined = ir.Constant(vector.type, ir.Undefined)
    chosen = ir.Constant(ir.VectorType(_INT, len(lanes)), lanes)
    return builder.shuffle_vector(vector, undefined, chosen)


def _broadcast(builder: Any, value: Any) -> Any:
    empty = ir.Constant(_VEC, ir.Undefined)
    return _pick(builder, builder.insert_element(empty, value, _INT(0)), [0] * LANES)


def _fused(builder: Any, x: Any, y: Any, addend: Any) -> Any:
    kind = x.type
    signature = ir.FunctionType(kind, [kind] * 3)
    name = f"llvm.fma.v{kind.count}f32"
    return builder.call(get_or_insert_function(builder.module, signature, name), [x, y, addend])


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """Sixteen consecutive floats of a flat array."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _load(builder, _address(context, builder, signature.args[0], args[0], args[1]))

    return _vec(array, types.intp), generate


@intrinsic
def store(typing: Any, array: Any, index: Any, vector: Any) -> Any:
    """Write sixteen consecutive floats of a flat array."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _store(builder, args[2], _address(context, builder, signature.args[0], args[0], args[1]))
        return context.get_dummy_value()

    return types.void(array, types.intp, _vec), generate


@intrinsic
def spread(typing: Any, array: Any, index: Any) -> Any:
    """One float of a flat array in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], args[0], args[1])
        return _broadcast(builder, builder.load(address))

    return _vec(array, types.intp), generate


@intrinsic
def transpose(typing: Any, source: Any, start: Any, stride: Any, target: Any, to: Any) -> Any:
    """Sixteen rows of sixteen floats, ``stride`` apart, written as columns, one after another."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, start, stride, target, to = args
        rows = []
        for row in range(LANES):
            index = builder.add(start, builder.mul(stride, start.type(row)))
            address = _address(context, builder, signature.args[0], source, index)
            rows.append(_load(builder, address))
        half = LANES // 2
        for _ in range(4):  # each time, lanes of the first eight alternate with those of the last eight
            pairs = zip(rows[:half], rows[half:], strict=True)
            rows = [_merged(builder, x, y, begin) for x, y in pairs for begin in (0, half)]
        for column, vector in enumerate(rows):
            index = builder.add(to, to.type(column * LANES))
            address = _address(context, builder, signature.args[3], target, index)
            _store(builder, vector, address)
        return context.get_dummy_value()

    return types.void(source, types.intp, types.intp, target, types.intp), generate


def _merged(builder: Any, x: Any, y: Any, begin: int) -> Any:
    """Half the lanes of two vectors, from lane ``begin`` on, in turns."""
    lanes = [lane for k in range(begin, begin + LANES // 2) for lane in (k, LANES + k)]
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_INT, LANES), lanes))


@intrinsic
def prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Ask for an element of a flat array to be near when it is read; changes no number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], args[0], args[1])
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, _INT, _INT, _INT])
        function = get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.bitcast(address, pointer), _INT(0), _INT(3), _INT(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def fill(typing: Any, value: Any) -> Any:
    """A float in all lanes."""
    return _vec(types.float32), lambda context, builder, signature, args: _broadcast(builder, args[0])


@intrinsic
def fma(typing: Any, x: Any, y: Any, addend: Any) -> Any:
    """``x * y + addend``, rounded once."""
    return _vec(_vec, _vec, _vec), lambda context, builder, signature, args: _fused(builder, *args)


@intrinsic
def add(typing: Any, x: Any, y: Any) -> Any:
    """``x + y``."""
    return _vec(_vec, _vec), lambda context, builder, signature, args: builder.fadd(*args)


@intrinsic
def sub(typing: Any, x: Any, y: Any) -> Any:
    """``x - y``."""
    return _vec(_vec, _vec), lambda context, builder, signature, args: builder.fsub(*args)


@intrinsic
def mul(typing: Any, x: Any, y: Any) -> Any:
    """``x * y``."""
    return _vec(_vec, _vec), lambda context, builder, signature, args: builder.fmul(*args)


# tanh(x) = x P(x^2) / Q(x^2) on [-8, 8], a rational fit; the error stays below 4e-7.
_P = (0.999999994, 0.134444961, 0.00357159584, 2.18946258e-05, 1.52303667e-08)
_Q = (1.0, 0.467778235, 0.0261644346, 0.000341128844, 8.52242596e-07)


@intrinsic
def tanh(typing: Any, x: Any) -> Any:
    """Hyperbolic tangent."""
    return _vec(_vec), lambda context, builder, signature, args: _tanh(builder, args[0])


def _log(builder: Any, x: Any) -> Any:
    """Natural logarithm of positive normal numbers: the exponent, and a series for the rest of it."""
    words = ir.VectorType(_INT, LANES)

    def whole(value: int) -> ir.Constant:
        return ir.Constant(words, [value] * LANES)

    bits = builder.bitcast(x, words)
    exponent = builder.sub(builder.ashr(bits, whole(23)), whole(127))
    kept = builder.or_(builder.and_(bits, whole(0x7FFFFF)), whole(0x3F800000))
    mantissa = builder.bitcast(kept, _VEC)  # in [1, 2)
    large = builder.fcmp_ordered(">", mantissa, _constant(1.41421356))
    mantissa = builder.select(large, builder.fmul(mantissa, _constant(0.5)), mantissa)
    exponent = builder.select(large, builder.add(exponent, whole(1)), exponent)
    ones = _constant(1)
    s = builder.fdiv(builder.fsub(mantissa, ones), builder.fadd(mantissa, ones))
    square = builder.fmul(s, s)
    series = _constant(2 / 9)
    for coefficient in (2 / 7, 2 / 5, 2 / 3, 2.0):
        series = _fused(builder, series, square, _constant(coefficient))
    return _fused(builder, builder.sitofp(exponent, _VEC), _constant(0.69314718), builder.fmul(series, s))


def _tanh(builder: Any, x: Any) -> Any:
    low, high = _constant(-8), _constant(8)
    x = builder.select(builder.fcmp_ordered("<", x, high), x, high)
    x = builder.select(builder.fcmp_ordered(">", x, low), x, low)
    square = builder.fmul(x, x)

    def polynomial(coefficients: tuple[float, ...]) -> Any:
        value = _constant(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            value = _fused(builder, value, square, _constant(coefficient))
        return value

    return builder.fdiv(builder.fmul(x, polynomial(_P)), polynomial(_Q))


@intrinsic
def log(typing: Any, x: Any) -> Any:
    """Natural logarithm of positive normal numbers."""
    return _vec(_vec), lambda context, builder, signature, args: _log(builder, args[0])


def _sqrt(builder: Any, x: Any) -> Any:
    signature = ir.FunctionType(_VEC, [_VEC])
    function = get_or_insert_function(builder.module, signature, f"llvm.sqrt.v{LANES}f32")
    return builder.call(function, [x])


@intrinsic
def sqrt(typing: Any, x: Any) -> Any:
    """Square root, rounded correctly."""
    return _vec(_vec), lambda context, builder, signature, args: _sqrt(builder, args[0])


@intrinsic
def clip_errors(typing: Any, x: Any, square: Any, limit: Any) -> Any:
    """``x`` scaled so that ``|x| sqrt(square)`` is at most ``limit``; 0 where this is no finite number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, square, limit = args
        size = builder.select(builder.fcmp_ordered("<", x, _constant(0)), builder.fneg(x), x)
        norm = builder.fmul(size, _sqrt(builder, square))
        scaled = builder.fmul(x, builder.fdiv(limit, norm))
        kept = builder.select(builder.fcmp_ordered("<=", norm, limit), x, scaled)
        return builder.select(builder.fcmp_ordered("<", norm, _constant(float("inf"))), kept, _constant(0))

    return _vec(_vec, _vec, _vec), generate


@intrinsic
def log_odds(typing: Any, x: Any) -> Any:
    """``log(x / (1 - x))``, with x kept away from 0 and 1 by 1e-6."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (x,) = args
        low, high = _constant(1e-6), _constant(1 - 1e-6)
        x = builder.select(builder.fcmp_ordered("<", x, high), x, high)
        x = builder.select(builder.fcmp_ordered(">", x, low), x, low)
        return builder.fsub(_log(builder, x), _log(builder, builder.fsub(_constant(1), x)))

    return _vec(_vec), generate


@intrinsic
def softplus(typing: Any, x: Any) -> Any:
    """``log(1 + exp(x))``: the cross-entropy of label 0 where x is the log-odds of label 1."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (x,) = args
        zero, ones = _constant(0), _constant(1)
        above = builder.fcmp_ordered(">", x, zero)
        size = builder.select(above, x, builder.fneg(x))
        t = _tanh(builder, builder.fmul(size, _constant(0.5)))
        decay = builder.fdiv(builder.fsub(ones, t), builder.fadd(ones, t))  # exp(-|x|)
        return builder.fadd(builder.select(above, x, zero), _log(builder, builder.fadd(ones, decay)))

    return _vec(_vec), generate


@intrinsic
def neg(typing: Any, x: Any) -> Any:
    """``-x``."""
    return _vec(_vec), lambda context, builder, signature, args: builder.fneg(args[0])


@intrinsic
def masked_sum(typing: Any, x: Any, mask: Any) -> Any:
    """The sum of the lanes with their bit set in ``mask``, in the order of the lanes, in 64 bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        chosen = builder.bitcast(args[1], ir.VectorType(ir.IntType(1), LANES))
        kept = builder.select(chosen, args[0], _constant(0))
        total = ir.Constant(ir.DoubleType(), 0.0)
        for lane in range(LANES):
            value = builder.extract_element(kept, _INT(lane))
            total = builder.fadd(total, builder.fpext(value, ir.DoubleType()))
        return total

    return types.float64(_vec, types.uint16), generate


@intrinsic
def slope(typing: Any, h: Any) -> Any:
    """``1 - h * h``, the derivative of tanh where its value is ``h``."""
    return _vec(_vec), lambda context, builder, signature, args: _fused(
        builder, builder.fneg(args[0]), args[0], _constant(1)
    )


@intrinsic
def count_positive(typing: Any, x: Any, mask: Any) -> Any:
    """How many lanes with their bit set in ``mask`` are above zero."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(LANES)
        above = builder.bitcast(builder.fcmp_ordered(">", args[0], _constant(0)), word)
        count = builder.ctpop(builder.and_(above, args[1]))
        return builder.zext(count, ir.IntType(64))

    return types.int64(_vec, types.uint16), generate


# Groups: several vectors that a loop works on side by side. Each keeps its own order of sums.


@intrinsic(prefer_literal=True)
def repeat(typing: Any, vector: Any, count: Any) -> Any:
    """A group of a vector, so many times."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    size = count.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _grouped(builder, [args[0]] * size)

    return _group(size)(_vec, count), generate


@intrinsic(prefer_literal=True)
def spread_all(typing: Any, array: Any, index: Any, count: Any) -> Any:
    """A group of consecutive floats, each in all lanes."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    size = count.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        offsets = [builder.add(args[1], args[1].type(number)) for number in range(size)]
        floats = [builder.load(_address(context, builder, array, args[0], offset)) for offset in offsets]
        return _grouped(builder, [_broadcast(builder, value) for value in floats])

    return _group(size)(array, types.intp, count), generate


@intrinsic
def load_all(typing: Any, array: Any, index: Any, step: Any, like: Any) -> Any:
    """A group of vectors that start ``step`` apart, as many as another group has."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        offsets = [_moved(builder, args[1], args[2], number) for number in range(like.count)]
        vectors = [_load(builder, _address(context, builder, array, args[0], offset)) for offset in offsets]
        return _grouped(builder, vectors)

    return like(array, types.intp, types.intp, like), generate


@intrinsic
def store_all(typing: Any, array: Any, index: Any, step: Any, group: Any) -> Any:
    """Write a group's vectors ``step`` apart."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for number, vector in enumerate(_members(builder, args[3])):
            offset = _moved(builder, args[1], args[2], number)
            _store(builder, vector, _address(context, builder, array, args[0], offset))
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, group), generate


@intrinsic
def subtract_all(typing: Any, array: Any, index: Any, step: Any, group: Any) -> Any:
    """Subtract a group's vectors from those of an array, ``step`` apart."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for number, vector in enumerate(_members(builder, args[3])):
            address = _address(context, builder, array, args[0], _moved(builder, args[1], args[2], number))
            _store(builder, builder.fsub(_load(builder, address), vector), address)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, group), generate


@intrinsic
def tanh_all(typing: Any, group: Any) -> Any:
    """`tanh` of each vector."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _grouped(builder, [_tanh(builder, vector) for vector in _members(builder, args[0])])

    return group(group), generate


def _add_inputs(down: bool) -> Any:
    def typed(typing: Any, group: Any, x: Any, rows: Any, row: Any, column: Any, vector: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            group, array, offsets, row, column, vector = args
            members = []
            for number, member in enumerate(_members(builder, group)):
                shift = row.type(number)
                across = column if down else builder.add(column, shift)
                pointer = _address(context, builder, rows, offsets, builder.add(row, shift) if down else row)
                index = builder.add(builder.load(pointer), across)
                value = builder.load(_address(context, builder, x, array, index))
                members.append(_fused(builder, _broadcast(builder, value), vector, member))
            return _grouped(builder, members)

        return group(group, x, rows, types.intp, types.intp, _vec), generate

    return typed


fma_rows = intrinsic(_add_inputs(down=True))
"""Add ``x[rows[row + i] + column] * vector`` to vector ``i`` of a group, rounded once."""
fma_columns = intrinsic(_add_inputs(down=False))
"""Add ``x[rows[row] + column + i] * vector`` to vector ``i`` of a group, rounded once."""


def _add_scaled(fused: bool) -> Any:
    def typed(typing: Any, group: Any, array: Any, index: Any, step: Any, vector: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            sums, values, index, step, vector = args
            members = []
            for number, member in enumerate(_members(builder, sums)):
                address = _address(context, builder, array, values, _moved(builder, index, step, number))
                value = _broadcast(builder, builder.load(address))
                if fused:
                    members.append(_fused(builder, value, vector, member))
                else:
                    members.append(builder.fadd(member, builder.fmul(value, vector)))
            return _grouped(builder, members)

        return group(group, array, types.intp, types.intp, _vec), generate

    return typed


fma_apart = intrinsic(_add_scaled(fused=True))
"""Add ``array[index + i * step] * vector`` to vector ``i`` of a group, rounded once."""
add_apart = intrinsic(_add_scaled(fused=False))
"""The same, with the product rounded before it is added."""


@intrinsic
def fma_chain(typing: Any, total: Any, group: Any, array: Any, index: Any) -> Any:
    """Add a group's vectors to one, each times a float of an array, one after another."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total, group, values, index = args
        for number, vector in enumerate(_members(builder, group)):
            address = _address(context, builder, array, values, builder.add(index, index.type(number)))
            total = _fused(builder, vector, _broadcast(builder, builder.load(address)), total)
        return total

    return _vec(_vec, group, array, types.intp), generate


@intrinsic(prefer_literal=True)
def no_sums(typing: Any, count: Any) -> Any:
    """A group of four partial sums of zero, so many times."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    size = count.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _grouped(builder, [ir.Constant(_QUAD, [0.0] * 4)] * size)

    return _group(size, _quad)(count), generate


@intrinsic
def add_products(typing: Any, sums: Any, group: Any, vector: Any) -> Any:
    """For each vector of a group, add lane ``i`` times another's to partial sum ``i % 4``, in order."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        members = _members(builder, args[0])
        for start in range(0, LANES, 4):
            four = list(range(start, start + 4))
            y = _pick(builder, args[2], four)
            for number, x in enumerate(_members(builder, args[1])):
                members[number] = _fused(builder, _pick(builder, x, four), y, members[number])
        return _grouped(builder, members)

    return sums(sums, group, _vec), generate


@intrinsic
def store_totals(typing: Any, array: Any, index: Any, sums: Any) -> Any:
    """Write ``(s0 + s2) + (s1 + s3)`` of each of several four partial sums."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for number, four in enumerate(_members(builder, args[2])):
            pairs = builder.fadd(_pick(builder, four, [0, 1]), _pick(builder, four, [2, 3]))
            first, second = (builder.extract_element(pairs, _INT(lane)) for lane in (0, 1))
            address = _address(context, builder, array, args[0], builder.add(args[1], args[1].type(number)))
            builder.store(builder.fadd(first, second), address)
        return context.get_dummy_value()

    return types.void(array, types.intp, sums), generate

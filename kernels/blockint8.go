package kernels

import "math"

//go:generate go run -C _generate ./blockint8 -out ../blockint8_amd64.s -stubs ../blockint8_amd64.go -pkg kernels

// BlockInt8Bytes is the size of n numbers in one byte each: for each block of them, the last maybe shorter, a scale, float32 in
// little-endian order; then the levels, whole numbers from -127 to 127.
func BlockInt8Bytes(n, block int) int { return 4*((n+block-1)/block) + n }

// TakeBlockInt8 moves x out, rounded block by block, into msg of BlockInt8Bytes:
//
//	scale = max|x| / 127; level[i] = x[i] / scale, to the nearest even; x[i] -= level[i] * scale
//
// The quotient is x[i] * (1/scale), which may be off by two roundings. A scale below 2^-126 counts as 0: such a block is not sent.
func TakeBlockInt8(s Stream, msg Buf[uint8], x Buf[float32], block int) {
	launchBlockInt8(s, &takeBlockInt8Op, msg, x, 1, block)
}

// AddBlockInt8 is y[i] += a * scale * level[i], products rounded before the sum. Whatever the bytes of msg, what is added is finite: see
// getScale.
func AddBlockInt8(s Stream, y Buf[float32], a float32, msg Buf[uint8], block int) {
	launchBlockInt8(s, &addBlockInt8Op, msg, y, a, block)
}

func launchBlockInt8(s Stream, op *Op, msg Buf[uint8], x Buf[float32], a float32, block int) {
	sameLen(op.Name, msg.n, BlockInt8Bytes(x.n, block))
	s.Launch(Kernel{Op: op, N: x.n, Args: [maxArgs]Arg{msg.arg(), x.arg(), f32(a), u64(uint64(block))}})
}

// blockInt8 resolves the arguments of launchBlockInt8.
func blockInt8(k *Kernel) (scales, levels []byte, x []float32, a float32, block int) {
	msg, x := slice[uint8](k.Args[0]), slice[float32](k.Args[1])
	at := len(msg) - len(x)
	return msg[:at], msg[at:], x, k.Args[2].f32(), int(k.Args[3].Bits)
}

var takeBlockInt8Op = Op{"take_block_int8", func(k *Kernel) {
	scales, levels, x, _, block := blockInt8(k)
	for ; len(x) > 0; scales = scales[4:] {
		n := min(block, len(x))
		scale := sane(maxAbs(x[:n]) / 127)
		if scale < 0x1p-126 {
			scale = 0
		}
		putScale(scales, scale)
		takeLevels(levels[:n], x[:n], scale)
		levels, x = levels[n:], x[n:]
	}
}}

func maxAbs(x []float32) float32 {
	var a, b, c, d uint32
	for avx2 && len(x) >= 32 {
		n, most := maxAbsAVX2(x[:min(len(x), piece)])
		a, x = max(a, most), x[n:]
	}
	for ; len(x) >= 4; x = x[4:] {
		a = max(a, math.Float32bits(x[0])&magMask)
		b = max(b, math.Float32bits(x[1])&magMask)
		c = max(c, math.Float32bits(x[2])&magMask)
		d = max(d, math.Float32bits(x[3])&magMask)
	}
	for _, v := range x {
		a = max(a, math.Float32bits(v)&magMask)
	}
	return math.Float32frombits(max(max(a, b), max(c, d)))
}

func takeLevels(levels []byte, x []float32, scale float32) {
	if scale == 0 {
		clear(levels)
		return
	}
	inv := 1 / scale
	for avx2 && len(x) >= 32 {
		n := takeLevelsAVX2(levels, x[:min(len(x), piece)], inv, scale)
		levels, x = levels[n:], x[n:]
	}
	levels = levels[:len(x)]
	for i, v := range x {
		// Adding 1.5 * 2^23 leaves no bits for a fraction: the addition rounds, and the low byte is the level.
		const shift = 0x1.8p23
		q := float32(v*inv) + shift
		levels[i] = byte(math.Float32bits(q))
		x[i] = v - float32((q-shift)*scale)
	}
}

var addBlockInt8Op = Op{"add_block_int8", func(k *Kernel) {
	scales, levels, y, a, block := blockInt8(k)
	for ; len(y) > 0; scales = scales[4:] {
		n := min(block, len(y))
		scale := float32(a * getScale(scales))
		addLevels(y[:n], levels[:n], scale)
		levels, y = levels[n:], y[n:]
	}
}}

func addLevels(y []float32, levels []byte, scale float32) {
	for avx2 && len(y) >= 32 {
		n := addLevelsAVX2(y[:min(len(y), piece)], levels, scale)
		levels, y = levels[n:], y[n:]
	}
	for i, b := range levels[:len(y)] {
		y[i] += float32(float32(int8(b)) * scale)
	}
}

// Command blockint8 writes blockint8_amd64.s.
package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"

	. "github.com/gradpress/gradpress/kernels/_generate/simd"
)

func main() {
	Start()
	most()
	take()
	add()
	Generate()
}

func most() {
	Func("maxAbsAVX2", "func(x []float32) (n int, most uint32)",
		"maxAbsAVX2 is most = max(most, the bits of |x[i]|), from 0 on, for the first n = len(x)&^31 entries.")
	mag := Const(math.MaxInt32)
	var m [4]VecVirtual
	for k := range m {
		m[k] = YMM()
		VPXOR(m[k], m[k], m[k])
	}
	n := Loop("x", 32, func(x Mem, _ Register) {
		for k := range m {
			v := YMM()
			VPAND(x.Offset(32*k), mag, v)
			VPMAXUD(v, m[k], m[k])
		}
	})
	VPMAXUD(m[1], m[0], m[0])
	VPMAXUD(m[3], m[2], m[2])
	VPMAXUD(m[2], m[0], m[0])
	Store(Fold(m[0]), ReturnIndex(1))
	End(n)
}

func take() {
	Func("takeLevelsAVX2", "func(levels []uint8, x []float32, inv, scale float32) (n int)",
		"takeLevelsAVX2 is, for the first n = len(x)&^31 entries,",
		"",
		"\tq := x[i] * inv, to the nearest even whole number, |q| < 128",
		"\tlevels[i] = byte(int8(q)); x[i] -= q * scale, the product rounded before")
	levels := Ptr("levels")
	inv, scale, shift := Spread("inv"), Spread("scale"), Const(math.Float32bits(0x1.8p23))
	order := Const(0, 4, 1, 5, 2, 6, 3, 7)
	n := Loop("x", 32, func(x Mem, i Register) {
		var q [4]VecVirtual
		for k := range q {
			v, p := YMM(), YMM()
			q[k] = YMM()
			VMOVUPS(x.Offset(32*k), v)
			VMULPS(inv, v, p)
			VADDPS(shift, p, p) // leaves no bits for a fraction
			VPSUBD(shift, p, q[k])
			VSUBPS(shift, p, p)
			VMULPS(scale, p, p)
			VSUBPS(p, v, v)
			VMOVUPS(v, x.Offset(32*k))
		}
		VPACKSSDW(q[1], q[0], q[0])
		VPACKSSDW(q[3], q[2], q[2])
		VPACKSSWB(q[2], q[0], q[0])
		VPERMD(q[0], order, q[0])
		VMOVUPS(q[0], Mem{Base: levels, Index: i, Scale: 1})
	})
	End(n)
}

func add() {
	Func("addLevelsAVX2", "func(y []float32, levels []uint8, scale float32) (n int)",
		"addLevelsAVX2 is y[i] += float32(int8(levels[i])) * scale, the product rounded before, for the first n = len(y)&^31 entries.")
	levels := Ptr("levels")
	scale := Spread("scale")
	n := Loop("y", 32, func(y Mem, i Register) {
		for k := range 4 {
			v := YMM()
			VPMOVSXBD(Mem{Base: levels, Index: i, Scale: 1, Disp: 8 * k}, v)
			VCVTDQ2PS(v, v)
			VMULPS(scale, v, v)
			VADDPS(y.Offset(32*k), v, v)
			VMOVUPS(v, y.Offset(32*k))
		}
	})
	End(n)
}

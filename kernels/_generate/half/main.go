// Command half writes half_amd64.s.
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
	to("toF16AVX2", "toF16", func() func(Mem, Mem) {
		return func(src, dst Mem) {
			for k := range 2 {
				v := YMM()
				VMOVUPS(src.Offset(32*k), v)
				VCVTPS2PH(U8(0), v, dst.Offset(16*k)) // 0: to the nearest, ties to even
			}
		}
	})
	from("fromF16AVX2", "fromF16", func(src Mem, v VecVirtual) {
		VCVTPH2PS(src, v)
	})
	to("toBF16AVX2", "toBF16", func() func(Mem, Mem) {
		mag, inf, one, half, quiet := Const(math.MaxInt32), Const(0x7f800000), Const(1), Const(0x7fff), Const(0x40)
		return func(src, dst Mem) {
			var h [2]VecVirtual
			for k := range h {
				b, r, nan := YMM(), YMM(), YMM()
				h[k] = r
				VMOVUPS(src.Offset(32*k), b)
				VPAND(b, mag, nan)
				VPCMPGTD(inf, nan, nan)
				VPSRLD(U8(16), b, r)
				t := YMM()
				VPAND(r, one, t)
				VPADDD(b, t, t)
				VPADDD(half, t, t)
				VPSRLD(U8(16), t, t)
				VPOR(quiet, r, r)
				VPBLENDVB(nan, r, t, r)
			}
			VPACKUSDW(h[1], h[0], h[0])
			VPERMQ(U8(0xd8), h[0], h[0])
			VMOVUPS(h[0], dst)
		}
	})
	from("fromBF16AVX2", "fromBF16", func(src Mem, v VecVirtual) {
		VPMOVZXWD(src, v)
		VPSLLD(U8(16), v, v)
	})
	Generate()
}

func to(name, op string, prepare func() func(src, dst Mem)) {
	Func(name, "func(dst []uint16, src []float32) (n int)", name+" is dst[i] = "+op+"(src[i]), for the first n = len(src)&^15 entries.")
	dst, body := Ptr("dst"), prepare()
	End(Loop("src", 16, func(src Mem, i Register) { body(src, Mem{Base: dst, Index: i, Scale: 2}) }))
}

func from(name, op string, body func(src Mem, v VecVirtual)) {
	Func(name, "func(dst []float32, src []uint16) (n int)", name+" is dst[i] = "+op+"(src[i]), for the first n = len(dst)&^15 entries.")
	src := Ptr("src")
	End(Loop("dst", 16, func(dst Mem, i Register) {
		for k := range 2 {
			v := YMM()
			body(Mem{Base: src, Index: i, Scale: 2, Disp: 16 * k}, v)
			VMOVUPS(v, dst.Offset(32*k))
		}
	}))
}

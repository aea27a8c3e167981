// Command lowrank writes lowrank_amd64.s.
package main

import (
	"fmt"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"

	. "github.com/gradpress/gradpress/kernels/_generate/simd"
)

func main() {
	Start()
	dots()
	weigh()
	for columns := 1; columns <= 2; columns++ {
		outer(columns, true)
		outer(columns, false)
	}
	Generate()
}

var rows = []string{"m0", "m1", "m2", "m3"}

// each is a function's four rows, its groups of eight columns, and what happens to one.
func each(q string, body func(row func(r int) Mem, q Mem, i Register)) Register {
	var base []Register
	for _, r := range rows {
		base = append(base, Ptr(r))
	}
	return Loop(q, 8, func(q Mem, i Register) {
		body(func(r int) Mem { return Mem{Base: base[r], Index: i, Scale: 4} }, q, i)
	})
}

func dots() {
	Func("dotsAVX2", "func(m0, m1, m2, m3, q []float32, sums *[4]float32) (n int)",
		"dotsAVX2 is sums[r] = dot(m_r[:n], q[:n]) for the first n = len(q)&^7 columns.")
	var s []VecVirtual
	for range rows {
		y := YMM()
		VXORPS(y, y, y)
		s = append(s, y)
	}
	n := each("q", func(row func(int) Mem, q Mem, _ Register) {
		x := YMM()
		VMOVUPS(q, x)
		for r := range rows {
			v := YMM()
			VMULPS(row(r), x, v)
			VADDPS(v, s[r], s[r])
		}
	})
	sums := Ptr("sums")
	for r := range rows {
		a, b := s[r].AsX(), XMM()
		VEXTRACTF128(U8(1), s[r], b)
		VADDPS(b, a, a)
		VPERMILPS(U8(0x4e), a, b)
		VADDPS(b, a, a)
		VPERMILPS(U8(0xb1), a, b)
		VADDSS(b, a, a)
		VMOVSS(a, Mem{Base: sums, Disp: 4 * r})
	}
	End(n)
}

func weigh() {
	Func("weighAVX2", "func(q, m0, m1, m2, m3 []float32, p *[4]float32) (n int)",
		"weighAVX2 is q[j] += (p[0]*m0[j] + p[1]*m1[j]) + (p[2]*m2[j] + p[3]*m3[j]) for the first n = len(q)&^7 columns.")
	p := elements("p")
	n := each("q", func(row func(int) Mem, q Mem, _ Register) {
		var t []VecVirtual
		for r := range rows {
			v := YMM()
			VMULPS(row(r), p[r], v)
			t = append(t, v)
		}
		VADDPS(t[1], t[0], t[0])
		VADDPS(t[3], t[2], t[2])
		VADDPS(t[2], t[0], t[0])
		VADDPS(q, t[0], t[0])
		VMOVUPS(t[0], q)
	})
	End(n)
}

// elements fills four registers with those of p.
func elements(p string) (y []VecVirtual) {
	base := Ptr(p)
	for r := range rows {
		v := YMM()
		VBROADCASTSS(Mem{Base: base, Disp: 4 * r}, v)
		y = append(y, v)
	}
	return y
}

func outer(columns int, set bool) {
	ps, qs := []string{"p", "r"}[:columns], []string{"q", "s"}[:columns]
	name, what := fmt.Sprintf("addOuter%dAVX2", columns), "m_i[j]"
	if set {
		name, what = fmt.Sprintf("setOuter%dAVX2", columns), "0"
	}
	for c := range ps {
		what += fmt.Sprintf(" + %s[i]*%s[j]", ps[c], qs[c])
	}
	Func(name, fmt.Sprintf("func(m0, m1, m2, m3, %s []float32, %s *[4]float32) (n int)", strings.Join(qs, ", "), strings.Join(ps, ", ")),
		name+" is m_i[j] = "+what+" for the four rows i and the first n = len(q)&^7 columns.")
	var p [][]VecVirtual
	for _, name := range ps {
		p = append(p, elements(name))
	}
	zero := YMM()
	if set {
		VXORPS(zero, zero, zero)
	}
	var more []Register
	for _, q := range qs[1:] {
		more = append(more, Ptr(q))
	}
	n := each("q", func(row func(int) Mem, q Mem, i Register) {
		x := []VecVirtual{YMM()}
		VMOVUPS(q, x[0])
		for _, base := range more {
			y := YMM()
			VMOVUPS(Mem{Base: base, Index: i, Scale: 4}, y)
			x = append(x, y)
		}
		for r := range rows {
			sum := YMM()
			VMULPS(x[0], p[0][r], sum)
			if set {
				VADDPS(zero, sum, sum)
			} else {
				VADDPS(row(r), sum, sum)
			}
			for c := 1; c < columns; c++ {
				t := YMM()
				VMULPS(x[c], p[c][r], t)
				VADDPS(t, sum, sum)
			}
			VMOVUPS(sum, row(r))
		}
	})
	End(n)
}

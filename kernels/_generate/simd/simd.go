// Package simd is what the generators of assembly share. All of it is AVX2, and each function works on the whole groups of elements at the
// front of its slices, returning how many elements those are: the Go loop, which defines the operation, does the rest.
package simd

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Start is what a file of assembly begins with.
func Start() { ConstraintExpr("!purego") }

// Func starts a function. Its comment is the Go loop that it stands for.
func Func(name, signature string, doc ...string) {
	TEXT(name, attr.NOSPLIT, signature)
	Doc(doc...)
	Pragma("noescape")
}

// Ptr loads where a slice or an array begins.
func Ptr(param string) Register {
	c := Param(param)
	if _, err := c.Resolve(); err != nil {
		c = c.Base()
	}
	return Load(c, GP64())
}

// Loop runs body for each whole group of elements that the slice x has. body gets where the group is in x, and its index.
func Loop(x string, group int, body func(at Mem, i Register)) (done Register) {
	base := Ptr(x)
	n := Load(Param(x).Len(), GP64())
	i := GP64()
	ANDQ(I32(-group), n)
	XORQ(i, i)
	JMP(LabelRef("check"))
	Label("group")
	body(Mem{Base: base, Index: i, Scale: 4}, i)
	ADDQ(U32(group), i)
	Label("check")
	CMPQ(i, n)
	JB(LabelRef("group"))
	return n
}

// End ends a function whose first result is how many elements are done.
func End(done Register) {
	VZEROUPPER()
	Store(done, ReturnIndex(0))
	RET()
}

// Fold is the largest of eight words.
func Fold(y VecVirtual) Register {
	a, b, most := y.AsX(), XMM(), GP32()
	VEXTRACTI128(U8(1), y, b)
	VPMAXUD(b, a, a)
	VPSHUFD(U8(0x4e), a, b)
	VPMAXUD(b, a, a)
	VPSHUFD(U8(0xb1), a, b)
	VPMAXUD(b, a, a)
	VMOVD(a, most)
	return most
}

// Spread fills a register with a parameter of four bytes.
func Spread(param string) VecVirtual {
	y := YMM()
	VBROADCASTSS(Addr(param), y)
	return y
}

// Addr is where a parameter is.
func Addr(param string) Mem {
	b, err := Param(param).Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

// Const fills a register with a constant.
func Const(w ...uint32) VecVirtual {
	y := YMM()
	VMOVUPS(Data(w...), y)
	return y
}

var known = map[[8]uint32]Mem{}

// Data is 32 bytes of constants in memory: eight words, or one eight times.
func Data(w ...uint32) Mem {
	var all [8]uint32
	for i := range all {
		all[i] = w[i%len(w)]
	}
	m, ok := known[all]
	if !ok {
		m = GLOBL(fmt.Sprintf("words%d", len(known)), attr.RODATA|attr.NOPTR)
		for i, v := range all {
			DATA(4*i, U32(v))
		}
		known[all] = m
	}
	return m
}

// Lefts is, for each set of eight lanes, the lanes of the set in order and then others, a byte each: what VPERMD needs to move them to the left.
func Lefts() Mem {
	m := GLOBL("lefts", attr.RODATA|attr.NOPTR)
	for set := range 256 {
		var order uint64
		at := 0
		for _, in := range []int{1, 0} {
			for lane := range 8 {
				if set>>lane&1 == in {
					order |= uint64(lane) << at
					at += 8
				}
			}
		}
		DATA(8*set, U64(order))
	}
	return m
}

package kernels

import (
	"encoding/binary"
	"math"
	"slices"
)

//go:generate go run -C _generate ./ternary -out ../ternary_amd64.s -stubs ../ternary_amd64.go -pkg kernels

// TernaryScale is scale[0] = min(max|x|, clip * sigma), sigma being the population standard deviation of x; max|x| where clip is 0.
// A sigma of 0, of equal entries or of only one, does not clip: nothing of them would ever be sent.
func TernaryScale(s Stream, scale Buf[float32], x Buf[float32], clip float32) {
	atLeast("TernaryScale", scale.n, 1)
	s.Launch(Kernel{Op: &ternaryScaleOp, N: x.n, Args: [maxArgs]Arg{scale.arg(), x.arg(), f32(clip)}})
}

var ternaryScaleOp = Op{"ternary_scale", func(k *Kernel) {
	scale, x, clip := slice[float32](k.Args[0]), slice[float32](k.Args[1]), float64(k.Args[2].f32())
	n := float64(len(x))
	var s spread
	if len(x) > 0 {
		s.first = float64(x[0])
	}
	s.add(x)
	scale[0] = sane(math.Float32frombits(slices.Max(s.most[:])))
	if clip == 0 || n == 0 {
		return
	}
	var sum, squares float64
	for j := range s.sums {
		sum += s.sums[j]
		squares += s.squares[j]
	}
	mean := sum / n
	variance := squares/n - float64(mean*mean)
	if limit := float32(clip * math.Sqrt(max(variance, 0))); limit > 0 {
		scale[0] = min(scale[0], limit)
	}
}}

// spread sums up differences from the first entry, which lose nothing to a large mean and are exactly 0 for equal entries. It does so in lanes, so
// that an addition need not wait for the last.
type spread struct {
	first         float64
	most          [8]uint32 // bits of the largest magnitude
	sums, squares [16]float64
}

func (s *spread) add(x []float32) {
	for avx2 && len(x) >= 16 {
		n := spreadAVX2(x[:min(len(x), piece)], s.first, &s.most, &s.sums, &s.squares)
		x = x[n:]
	}
	for len(x) > 0 {
		n := min(len(x), 16)
		for j, v := range x[:n] {
			d := float64(v) - s.first
			s.most[j%8] = max(s.most[j%8], math.Float32bits(v)&magMask)
			s.sums[j] += d
			s.squares[j] += float64(d * d)
		}
		x = x[n:]
	}
}

// MaxScale is scale[0] = max(scale[0], the float32 in msg). What is not finite there counts as 0: see getScale.
func MaxScale(s Stream, scale Buf[float32], msg Buf[uint8]) {
	atLeast("MaxScale", scale.n, 1)
	sameLen("MaxScale", msg.n, 4)
	s.Launch(Kernel{Op: &maxScaleOp, N: 1, Args: [maxArgs]Arg{scale.arg(), msg.arg()}})
}

var maxScaleOp = Op{"max_scale", func(k *Kernel) {
	scale := slice[float32](k.Args[0])
	scale[0] = max(scale[0], getScale(slice[uint8](k.Args[1])))
}}

// TernaryBytes is the size of n ternaries: two bits each, ternary i in bits 2*(i%4) and up of byte i/4; 0, 1 for plus, 2 for minus.
func TernaryBytes(n int) int { return (n + 3) / 4 }

// Draw says which random numbers of Philox an operation draws: those of counters (block, Rank, Step, ID) under a key.
type Draw struct {
	Rank, Step, ID uint32
	Key            [2]uint32
}

// DrawTernary draws each ternary at random, so that on average they are x clipped to clip[0], over scale[0] >= clip[0] >= 0:
//
//	code i = u*scale[0] < min(|x[i]|, clip[0]) ? the sign of x[i] : 0
//
// u in [0, 1) is the top 24 bits of word i%4 of block i/4 of d. The comparison is exact.
func DrawTernary(s Stream, codes Buf[uint8], x Buf[float32], clip, scale Buf[float32], d Draw) {
	sameLen("DrawTernary", codes.n, TernaryBytes(x.n))
	atLeast("DrawTernary: clip", clip.n, 1)
	atLeast("DrawTernary: scale", scale.n, 1)
	s.Launch(Kernel{Op: &drawTernaryOp, N: x.n, Args: [maxArgs]Arg{codes.arg(), x.arg(), clip.arg(), scale.arg(),
		u64(uint64(d.Rank)), u64(uint64(d.Step)), u64(uint64(d.ID)), u64(uint64(d.Key[1])<<32 | uint64(d.Key[0]))}})
}

var drawTernaryOp = Op{"draw_ternary", func(k *Kernel) {
	codes, x := slice[uint8](k.Args[0]), slice[float32](k.Args[1])
	clip, scale := slice[float32](k.Args[2])[0], slice[float32](k.Args[3])[0]
	rank, step, id, key := uint32(k.Args[4].Bits), uint32(k.Args[5].Bits), uint32(k.Args[6].Bits), Key(k.Args[7].Bits)
	block := uint32(0)
	for avx2 && len(x) >= 32 {
		n := drawTernaryAVX2(codes, x[:min(len(x), piece)], block, rank, step, id, key[0], key[1], clip, scale)
		codes, x, block = codes[n/4:], x[n:], block+uint32(n/4)
	}
	top, unit := math.Float32bits(clip), float64(scale)*0x1p-24
	for ; len(x) >= 4; codes, x, block = codes[1:], x[4:], block+1 {
		w0, w1, w2, w3 := philox(block, rank, step, id, key[0], key[1])
		codes[0] = ternary(x[0], w0, top, unit) | ternary(x[1], w1, top, unit)<<2 |
			ternary(x[2], w2, top, unit)<<4 | ternary(x[3], w3, top, unit)<<6
	}
	if len(x) > 0 {
		w := Philox([4]uint32{block, rank, step, id}, key)
		codes[0] = 0
		for j, v := range x {
			codes[0] |= ternary(v, w[j], top, unit) << (2 * j)
		}
	}
}}

// ternary is the code of v for a random word. Products and differences are exact in float64 or have the right sign.
func ternary(v float32, word, clip uint32, unit float64) byte {
	b := math.Float32bits(v)
	d := float64(word>>8)*unit - float64(math.Float32frombits(min(b&magMask, clip)))
	sent := uint32(math.Float64bits(d) >> 63)
	return byte(sent + sent&(b>>31))
}

// AddTernary is y[i] += a * scale * (ternary i of codes), products rounded before the sum, the float32 scale being the bytes of msg. A
// code of 3 counts as 0 and so does a scale that is not finite: see getScale.
func AddTernary(s Stream, y Buf[float32], a float32, codes, msg Buf[uint8]) {
	sameLen("AddTernary", codes.n, TernaryBytes(y.n))
	sameLen("AddTernary: scale", msg.n, 4)
	s.Launch(Kernel{Op: &addTernaryOp, N: y.n, Args: [maxArgs]Arg{y.arg(), f32(a), codes.arg(), msg.arg()}})
}

var addTernaryOp = Op{"add_ternary", func(k *Kernel) {
	y, codes := slice[float32](k.Args[0]), slice[uint8](k.Args[2])
	a := float32(k.Args[1].f32() * getScale(slice[uint8](k.Args[3])))
	for avx2 && len(y) >= 32 {
		n := addTernaryAVX2(y[:min(len(y), piece)], codes, a)
		y, codes = y[n:], codes[n/4:]
	}
	value := [4]float32{0, a, -a, 0}
	for ; len(y) >= 4; y, codes = y[4:], codes[1:] {
		c := codes[0]
		y[0] += value[c&3]
		y[1] += value[c>>2&3]
		y[2] += value[c>>4&3]
		y[3] += value[c>>6]
	}
	for j := range y {
		y[j] += value[codes[0]>>(2*j)&3]
	}
}}

// MostCounted is how many ternaries a count holds.
const MostCounted = math.MaxInt8

// CountTernary is y[i] += ternary i of codes, y being bytes of two's complement, four for each byte of codes. A code of 3 counts as 0. Sums beyond
// MostCounted wrap around.
func CountTernary(s Stream, y, codes Buf[uint8]) {
	sameLen("CountTernary", y.n, 4*codes.n)
	s.Launch(Kernel{Op: &countTernaryOp, N: codes.n, Args: [maxArgs]Arg{y.arg(), codes.arg()}})
}

var countTernaryOp = Op{"count_ternary", func(k *Kernel) {
	y, codes := slice[uint8](k.Args[0]), slice[uint8](k.Args[1])
	for ; len(codes) >= 2; y, codes = y[8:], codes[2:] {
		a, b := binary.LittleEndian.Uint64(y), uint64(fourTernaries[codes[0]])|uint64(fourTernaries[codes[1]])<<32
		const top = 0x8080808080808080
		binary.LittleEndian.PutUint64(y, (a&^top+b&^top)^(a^b)&top) // eight sums of bytes, from which nothing is carried to the next
	}
	for i, code := range codes {
		for j := range 4 {
			y[4*i+j] += byte(fourTernaries[code] >> (8 * j))
		}
	}
}}

// fourTernaries are the ternaries of each byte of codes, in bytes of two's complement.
var fourTernaries = func() (t [256]uint32) {
	for code := range t {
		for j := range 4 {
			t[code] |= [4]uint32{0, 1, 0xff, 0}[code>>(2*j)&3] << (8 * j)
		}
	}
	return t
}()

// AddCounts is y[i] += a * scale * counts[i], products rounded before the sum, the float32 scale being the bytes of msg and counts of two's
// complement. A scale that is not finite counts as 0: see getScale.
func AddCounts(s Stream, y Buf[float32], a float32, counts, msg Buf[uint8]) {
	sameLen("AddCounts", counts.n, y.n)
	sameLen("AddCounts: scale", msg.n, 4)
	s.Launch(Kernel{Op: &addCountsOp, N: y.n, Args: [maxArgs]Arg{y.arg(), f32(a), counts.arg(), msg.arg()}})
}

var addCountsOp = Op{"add_counts", func(k *Kernel) {
	y, counts := slice[float32](k.Args[0]), slice[uint8](k.Args[2])
	a := float32(k.Args[1].f32() * getScale(slice[uint8](k.Args[3])))
	for i, c := range counts {
		y[i] += float32(a * float32(int8(c)))
	}
}}

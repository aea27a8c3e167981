package kernels

import "math"

// TernaryScale is scale[0] = min(max|x|, clip * sigma), sigma being the population standard deviation of x; max|x| where clip is 0.
// A sigma of 0, of equal entries or of only one, does not clip: nothing of them would ever be sent.
func TernaryScale(s Stream, scale Buf[float32], x Buf[float32], clip float32) {
	atLeast("TernaryScale", scale.n, 1)
	s.Launch(Kernel{Op: &ternaryScaleOp, N: x.n, Args: [maxArgs]Arg{scale.arg(), x.arg(), f32(clip)}})
}

var ternaryScaleOp = Op{"ternary_scale", func(k *Kernel) {
	scale, x, clip := slice[float32](k.Args[0]), slice[float32](k.Args[1]), float64(k.Args[2].f32())
	n := float64(len(x))
	var first float64
	if len(x) > 0 {
		first = float64(x[0]) // sums of differences from it lose nothing to a large mean, and are exactly 0 for equal entries
	}
	var m0, m1 uint32
	var s0, s1, q0, q1 float64
	for ; len(x) >= 2; x = x[2:] {
		d0, d1 := float64(x[0])-first, float64(x[1])-first
		m0, m1 = max(m0, math.Float32bits(x[0])&magMask), max(m1, math.Float32bits(x[1])&magMask)
		s0 += d0
		s1 += d1
		q0 += float64(d0 * d0)
		q1 += float64(d1 * d1)
	}
	for _, v := range x {
		d := float64(v) - first
		m0 = max(m0, math.Float32bits(v)&magMask)
		s0 += d
		q0 += float64(d * d)
	}
	scale[0] = sane(math.Float32frombits(max(m0, m1)))
	if clip == 0 || n == 0 {
		return
	}
	mean := (s0 + s1) / n
	variance := (q0+q1)/n - float64(mean*mean)
	if limit := float32(clip * math.Sqrt(max(variance, 0))); limit > 0 {
		scale[0] = min(scale[0], limit)
	}
}}

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
	clip := math.Float32bits(slice[float32](k.Args[2])[0])
	unit := float64(slice[float32](k.Args[3])[0]) * 0x1p-24
	rank, step, id, key := uint32(k.Args[4].Bits), uint32(k.Args[5].Bits), uint32(k.Args[6].Bits), Key(k.Args[7].Bits)
	whole := len(x) / 4
	for i := range codes[:whole] {
		x := x[4*i : 4*i+4 : 4*i+4]
		w0, w1, w2, w3 := philox(uint32(i), rank, step, id, key[0], key[1])
		codes[i] = ternary(x[0], w0, clip, unit) | ternary(x[1], w1, clip, unit)<<2 |
			ternary(x[2], w2, clip, unit)<<4 | ternary(x[3], w3, clip, unit)<<6
	}
	if x := x[4*whole:]; len(x) > 0 {
		w := Philox([4]uint32{uint32(whole), rank, step, id}, key)
		codes[whole] = 0
		for j, v := range x {
			codes[whole] |= ternary(v, w[j], clip, unit) << (2 * j)
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

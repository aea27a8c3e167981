package kernels

import "math"

// Philox is one block of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): four random words,
// a function of counter and key alone. Counters are (block, rank, step, part ID), keys are Key of the seed xor a purpose, so
// that no two uses meet and all ranks and devices agree.
func Philox(ctr [4]uint32, key [2]uint32) [4]uint32 {
	w0, w1, w2, w3 := philox(ctr[0], ctr[1], ctr[2], ctr[3], key[0], key[1])
	return [4]uint32{w0, w1, w2, w3}
}

// philox is Philox with everything in registers, twice as fast in a loop.
func philox(c0, c1, c2, c3, k0, k1 uint32) (w0, w1, w2, w3 uint32) {
	for range 10 {
		a, b := 0xd2511f53*uint64(c0), 0xcd9e8d57*uint64(c2)
		c0, c1, c2, c3 = uint32(b>>32)^c1^k0, uint32(b), uint32(a>>32)^c3^k1, uint32(a)
		k0 += 0x9e3779b9
		k1 += 0xbb67ae85
	}
	return c0, c1, c2, c3
}

// Key is seed as Philox takes it: the low word, then the high word.
func Key(seed uint64) [2]uint32 { return [2]uint32{uint32(seed), uint32(seed >> 32)} }

// Normal fills x with standard normal numbers. Elements 4b to 4b+3 come of block b, by Box and Muller's transform of its words in pairs;
// the first word of ctr is thus not looked at. It runs on the host, and every machine computes the same bits: it uses only operations
// that IEEE 754 rounds correctly.
func Normal(x []float32, ctr [4]uint32, key [2]uint32) {
	for b := 0; 4*b < len(x); b++ {
		ctr[0] = uint32(b)
		w := Philox(ctr, key)
		var z [4]float32
		z[0], z[1] = boxMuller(w[0], w[1])
		z[2], z[3] = boxMuller(w[2], w[3])
		copy(x[4*b:], z[:])
	}
}

// boxMuller turns two random words into two independent normal numbers.
func boxMuller(a, b uint32) (x, y float32) {
	r := math.Sqrt(-2 * ln(float64(a)*0x1p-32+0x1p-32)) // of a uniform in (0, 1]
	sin, cos := turn(b)
	return float32(r * cos), float32(r * sin)
}

// ln is the natural logarithm of x in (0, 1], to about 1e-16 of its size. The conversions keep a compiler from fusing a product with a sum.
func ln(x float64) float64 {
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	// ln m = 2 atanh(s) = 2 (s + s^3/3 + s^5/5 ...), |s| < 0.172.
	s := (m - 1) / (m + 1)
	s2 := s * s
	sum := 0.0
	for k := 23; k > 1; k -= 2 {
		sum = float64(s2 * (1/float64(k) + sum))
	}
	return float64(float64(e)*math.Ln2) + 2*(s+float64(s*sum))
}

// turn is the sine and cosine of a full turn's share b / 2^32.
func turn(b uint32) (sin, cos float64) {
	// Within an eighth of a turn of the nearest axis, Taylor's series is short.
	axis := (b + 1<<29) >> 30
	t := float64(int32(b-axis<<30)) * (math.Pi / 2 * 0x1p-30)
	t2 := t * t
	s, c := 1.0, 1.0
	for k := 17.0; k > 1; k -= 2 {
		s = 1 - float64(float64(t2/(k*(k-1)))*s)
		c = 1 - float64(float64(t2/((k-1)*(k-2)))*c)
	}
	s *= t
	switch axis & 3 {
	case 1:
		return c, -s
	case 2:
		return -s, -c
	case 3:
		return -c, s
	}
	return s, c
}

package kernels

import (
	"math"
	"math/bits"
)

//go:generate go run -C _generate ./onebit -out ../onebit_amd64.s -stubs ../onebit_amd64.go -pkg kernels

// Groups says which entries of a row-major Rows x Cols matrix share a pair of levels: those of a row, or those of a column.
type Groups struct {
	Rows, Cols int
	ByColumn   bool
}

// Len is the number of groups.
func (g Groups) Len() int {
	if g.ByColumn {
		return g.Cols
	}
	return g.Rows
}

// OneBitBytes is the size of a matrix in one bit an entry: for each group two float32, little-endian, the level of its entries below
// zero and that of the others; then the bits, entry i as bit i%8 of byte i/8, set where it is below zero.
func OneBitBytes(g Groups) int { return 8*g.Len() + (g.Rows*g.Cols+7)/8 }

// TakeOneBit moves x out as signs and two means a group, into msg of OneBitBytes(g):
//
//	lo, hi = mean of the group's x[i] < 0, mean of its x[i] >= 0 (0 where there are none); x[i] -= x[i] < 0 ? lo : hi
//
// The order of the sums is the device's. Minus zero is not below zero.
func TakeOneBit(s Stream, msg Buf[uint8], x Buf[float32], g Groups) {
	launchOneBit(s, &takeOneBitOp, msg, x, 1, g)
}

// AddOneBit is y[i] += a * (the level of entry i in msg), the product rounded before the sum. Whatever the bytes of msg, levels are
// sane: see getScale.
func AddOneBit(s Stream, y Buf[float32], a float32, msg Buf[uint8], g Groups) {
	launchOneBit(s, &addOneBitOp, msg, y, a, g)
}

func launchOneBit(s Stream, op *Op, msg Buf[uint8], x Buf[float32], a float32, g Groups) {
	sameLen(op.Name, x.n, g.Rows*g.Cols)
	sameLen(op.Name, msg.n, OneBitBytes(g))
	by := uint64(0)
	if g.ByColumn {
		by = 1
	}
	s.Launch(Kernel{Op: op, N: x.n, Args: [maxArgs]Arg{msg.arg(), x.arg(), f32(a), u64(uint64(g.Rows)), u64(uint64(g.Cols)), u64(by)}})
}

// oneBit resolves the arguments of launchOneBit.
func oneBit(k *Kernel) (levels, signs []byte, x []float32, a float32, g Groups) {
	g = Groups{Rows: int(k.Args[3].Bits), Cols: int(k.Args[4].Bits), ByColumn: k.Args[5].Bits == 1}
	msg := slice[uint8](k.Args[0])
	return msg[:8*g.Len()], msg[8*g.Len():], slice[float32](k.Args[1]), k.Args[2].f32(), g
}

// strip is how many columns are worked on at once, so that what is kept for each stays in the nearest cache.
const strip = 1024

var takeOneBitOp = Op{"take_onebit", func(k *Kernel) {
	levels, signs, x, _, g := oneBit(k)
	clear(signs)
	put := func(group int, hi, lo float32) {
		putScale(levels[8*group:], lo)
		putScale(levels[8*group+4:], hi)
	}
	if !g.ByColumn {
		for r := range g.Rows {
			row := x[r*g.Cols : (r+1)*g.Cols]
			var sums rowSums
			sums.pack(signs, r*g.Cols, row)
			hi, lo := sums.levels(g.Cols)
			put(r, hi, lo)
			addRow(row, signs, r*g.Cols, -hi, -lo)
		}
		return
	}
	for c := 0; c < g.Cols; c += strip {
		var sums columnSums
		w := min(strip, g.Cols-c)
		for r := range g.Rows {
			sums.pack(signs, r*g.Cols+c, x[r*g.Cols+c:][:w])
		}
		var take columns
		for j := range w {
			hi, lo := sums.levels(j, g.Rows)
			put(c+j, hi, lo)
			take[0][j], take[1][j] = -hi, -lo
		}
		for r := range g.Rows {
			addColumns(x[r*g.Cols+c:][:w], signs, r*g.Cols+c, &take)
		}
	}
}}

var addOneBitOp = Op{"add_onebit", func(k *Kernel) {
	levels, signs, y, a, g := oneBit(k)
	level := func(group int) (hi, lo float32) {
		return a * getScale(levels[8*group+4:]), a * getScale(levels[8*group:])
	}
	if !g.ByColumn {
		for r := range g.Rows {
			hi, lo := level(r)
			addRow(y[r*g.Cols:(r+1)*g.Cols], signs, r*g.Cols, hi, lo)
		}
		return
	}
	for c := 0; c < g.Cols; c += strip {
		var add columns
		w := min(strip, g.Cols-c)
		for j := range w {
			add[0][j], add[1][j] = level(c + j)
		}
		for r := range g.Rows {
			addColumns(y[r*g.Cols+c:][:w], signs, r*g.Cols+c, &add)
		}
	}
}}

// below is 1 where v < 0, else 0. A NaN goes by its sign.
func below(v float32) uint32 { return uint32((1<<31 - uint64(math.Float32bits(v))) >> 63) }

// mean is a level: 0 for no entries, and nothing that a decoder would not take.
func mean(sum float64, n int) float32 {
	if n == 0 {
		return 0
	}
	return sane(float32(sum / float64(n)))
}

// rowSums are the sums of a row's entries that are not below zero and of those that are, and the count of the latter. Sums are in eight
// lanes, so that an addition need not wait for the last.
type rowSums struct {
	of    [2][8]float64
	below int
}

// levels are the means of a row of n entries.
func (s *rowSums) levels(n int) (hi, lo float32) {
	var sum [2]float64
	for k := range sum {
		for _, v := range s.of[k] {
			sum[k] += v
		}
	}
	return mean(sum[0], n-s.below), mean(sum[1], s.below)
}

// pack sets the signs of x, which are clear, from bit at on, and adds x to the sums.
func (s *rowSums) pack(signs []byte, at int, x []float32) {
	for ; at%8 != 0 && len(x) > 0; at, x = at+1, x[1:] {
		s.one(signs, at, 0, x[0])
	}
	signs = signs[at/8:]
	for avx2 && len(x) >= 16 {
		n, below := packRowAVX2(signs, x[:min(len(x), piece)], &s.of[0], &s.of[1])
		s.below += below
		signs, x = signs[n/8:], x[n:]
	}
	for ; len(x) >= 8; signs, x = signs[1:], x[8:] {
		k0, k1, k2, k3 := below(x[0]), below(x[1]), below(x[2]), below(x[3])
		k4, k5, k6, k7 := below(x[4]), below(x[5]), below(x[6]), below(x[7])
		b := byte(k0 | k1<<1 | k2<<2 | k3<<3 | k4<<4 | k5<<5 | k6<<6 | k7<<7)
		signs[0] = b
		s.below += bits.OnesCount8(b)
		s.of[k0&1][0] += float64(x[0])
		s.of[k1&1][1] += float64(x[1])
		s.of[k2&1][2] += float64(x[2])
		s.of[k3&1][3] += float64(x[3])
		s.of[k4&1][4] += float64(x[4])
		s.of[k5&1][5] += float64(x[5])
		s.of[k6&1][6] += float64(x[6])
		s.of[k7&1][7] += float64(x[7])
	}
	for j, v := range x {
		s.one(signs, j, j, v)
	}
}

func (s *rowSums) one(signs []byte, at, lane int, v float32) {
	k := below(v)
	signs[at/8] |= byte(k << (at % 8))
	s.of[k&1][lane] += float64(v)
	s.below += int(k)
}

// addRow is y[j] += bit at+j of signs ? lo : hi.
func addRow(y []float32, signs []byte, at int, hi, lo float32) {
	add := [2]float32{hi, lo}
	for ; at%8 != 0 && len(y) > 0; at, y = at+1, y[1:] {
		y[0] += add[signs[at/8]>>(at%8)&1]
	}
	signs = signs[at/8:]
	for avx2 && len(y) >= 32 {
		n := addRowAVX2(y[:min(len(y), piece)], signs, hi, lo)
		signs, y = signs[n/8:], y[n:]
	}
	for ; len(y) >= 8; signs, y = signs[1:], y[8:] {
		b := signs[0]
		y[0] += add[b&1]
		y[1] += add[b>>1&1]
		y[2] += add[b>>2&1]
		y[3] += add[b>>3&1]
		y[4] += add[b>>4&1]
		y[5] += add[b>>5&1]
		y[6] += add[b>>6&1]
		y[7] += add[b>>7]
	}
	for j := range y {
		y[j] += add[signs[0]>>j&1]
	}
}

// columnSums are, for each column of a strip, the sums that rowSums has for a row.
type columnSums struct {
	of    [2][strip]float64
	below [strip]uint32
}

// levels are the means of column j, of n entries.
func (s *columnSums) levels(j, n int) (hi, lo float32) {
	below := int(s.below[j])
	return mean(s.of[0][j], n-below), mean(s.of[1][j], below)
}

// pack sets the signs of a row of a strip, which are clear, from bit at on, and adds the row to the sums.
func (s *columnSums) pack(signs []byte, at int, x []float32) {
	j := 0
	for ; at%8 != 0 && j < len(x); at, j = at+1, j+1 {
		s.one(signs, at, j, x[j])
	}
	if avx2 {
		n := packColumnsAVX2(signs[at/8:], x[j:], s.of[0][j:], s.of[1][j:], s.below[j:])
		at, j = at+n, j+n
	}
	for ; j+8 <= len(x); at, j = at+8, j+8 {
		x, count := x[j:j+8:j+8], s.below[j:j+8:j+8]
		of := [2]*[8]float64{(*[8]float64)(s.of[0][j:]), (*[8]float64)(s.of[1][j:])}
		k0, k1, k2, k3 := below(x[0]), below(x[1]), below(x[2]), below(x[3])
		k4, k5, k6, k7 := below(x[4]), below(x[5]), below(x[6]), below(x[7])
		signs[at/8] = byte(k0 | k1<<1 | k2<<2 | k3<<3 | k4<<4 | k5<<5 | k6<<6 | k7<<7)
		of[k0&1][0] += float64(x[0])
		of[k1&1][1] += float64(x[1])
		of[k2&1][2] += float64(x[2])
		of[k3&1][3] += float64(x[3])
		of[k4&1][4] += float64(x[4])
		of[k5&1][5] += float64(x[5])
		of[k6&1][6] += float64(x[6])
		of[k7&1][7] += float64(x[7])
		count[0] += k0
		count[1] += k1
		count[2] += k2
		count[3] += k3
		count[4] += k4
		count[5] += k5
		count[6] += k6
		count[7] += k7
	}
	for ; j < len(x); at, j = at+1, j+1 {
		s.one(signs, at, j, x[j])
	}
}

func (s *columnSums) one(signs []byte, at, j int, v float32) {
	k := below(v)
	signs[at/8] |= byte(k << (at % 8))
	s.of[k&1][j] += float64(v)
	s.below[j] += k
}

// columns are, for each column of a strip, what to add where an entry is not below zero, and where it is.
type columns [2][strip]float32

// addColumns is y[j] += add[bit at+j of signs][j].
func addColumns(y []float32, signs []byte, at int, add *columns) {
	hi, lo := add[0][:len(y)], add[1][:len(y)]
	j := 0
	for ; at%8 != 0 && j < len(y); at, j = at+1, j+1 {
		y[j] += add[signs[at/8]>>(at%8)&1][j]
	}
	if avx2 && j < len(y) {
		n := addColumnsAVX2(y[j:], signs[at/8:], hi[j:], lo[j:])
		at, j = at+n, j+n
	}
	for ; j+8 <= len(y); at, j = at+8, j+8 {
		y, add, b := y[j:j+8:j+8], [2]*[8]float32{(*[8]float32)(hi[j:]), (*[8]float32)(lo[j:])}, signs[at/8]
		y[0] += add[b&1][0]
		y[1] += add[b>>1&1][1]
		y[2] += add[b>>2&1][2]
		y[3] += add[b>>3&1][3]
		y[4] += add[b>>4&1][4]
		y[5] += add[b>>5&1][5]
		y[6] += add[b>>6&1][6]
		y[7] += add[b>>7][7]
	}
	for ; j < len(y); at, j = at+1, j+1 {
		y[j] += add[signs[at/8]>>(at%8)&1][j]
	}
}

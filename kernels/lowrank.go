package kernels

//go:generate go run -C _generate ./lowrank -out ../lowrank_amd64.s -stubs ../lowrank_amd64.go -pkg kernels

// Matrices here are row-major windows, rows x cols. The factors of a low-rank matrix P Q^T lie column by column, end to end: p is rank
// columns of rows elements, q is rank columns of cols elements.

// MulRight is P = M Q:
//
//	for k := range rank { for i := range rows { p[k][i] = sum over j of m[i][j] * q[k][j] } }
//
// Each product is rounded; the order of the sum is the device's.
func MulRight(s Stream, p, m, q Buf[float32], rank int) {
	launchLowRank(s, &mulRightOp, m, p, q, rank)
}

// MulLeft is Q = M^T P:
//
//	for k := range rank { for j := range cols { q[k][j] = sum over i of m[i][j] * p[k][i] } }
//
// Each product is rounded; the order of the sum is the device's.
func MulLeft(s Stream, q, m, p Buf[float32], rank int) {
	launchLowRank(s, &mulLeftOp, m, p, q, rank)
}

// Outer is M = P Q^T, the same bits on every device:
//
//	for i := range rows { for j := range cols { m[i][j] = 0; for k := range rank { m[i][j] += p[k][i] * q[k][j] } } }
//
// Each product is rounded.
func Outer(s Stream, m, p, q Buf[float32], rank int) {
	launchLowRank(s, &outerOp, m, p, q, rank)
}

// SubOuter is M -= P Q^T:
//
//	for i := range rows { for j := range cols { for k := range rank { m[i][j] -= p[k][i] * q[k][j] } } }
//
// Each product is rounded.
func SubOuter(s Stream, m, p, q Buf[float32], rank int) {
	launchLowRank(s, &subOuterOp, m, p, q, rank)
}

// launchLowRank finds rows and cols from the lengths, which must agree. Rank is at least 1.
func launchLowRank(s Stream, op *Op, m, p, q Buf[float32], rank int) {
	rows, cols := p.n/rank, q.n/rank
	sameLen(op.Name, p.n, rows*rank)
	sameLen(op.Name, q.n, cols*rank)
	sameLen(op.Name, m.n, rows*cols)
	s.Launch(Kernel{Op: op, N: m.n, Args: [maxArgs]Arg{m.arg(), p.arg(), q.arg(), u64(uint64(rank))}})
}

// tile is how many columns are worked on at once: four rows of this width and a column of Q stay in the first-level cache, so that M comes
// from memory once, whatever the rank.
const tile = 1024

// rows4 is a tile of four rows, which share what is read of Q.
type rows4 [4][]float32

// from is the rows from column j to column n.
func (m rows4) from(j, n int) (m0, m1, m2, m3 []float32) {
	return m[0][j:n], m[1][j:n], m[2][j:n], m[3][j:n]
}

// tileOps does one operation on a tile, column of P and Q by column. p is four elements of a column of P, one a row; q is the tile's part
// of a column of Q. first says that these columns are the first.
type tileOps struct {
	four func(first bool, m rows4, p, q []float32)
	// two does two columns in one pass, p and q and then r and s; nil stands for four on each.
	two func(first bool, m rows4, p, q, r, s []float32)
	// one serves the rows that are left over.
	one func(first bool, m []float32, p *float32, q []float32)
}

// run does op on all tiles, in the order of memory.
func (op *tileOps) run(k *Kernel) {
	m, p, q, rank := slice[float32](k.Args[0]), slice[float32](k.Args[1]), slice[float32](k.Args[2]), int(k.Args[3].Bits)
	rows, cols := len(p)/rank, len(q)/rank
	for i := 0; i < rows; i += 4 {
		for lo := 0; lo < cols; lo += tile {
			hi := min(lo+tile, cols)
			row := func(i int) []float32 { return m[i*cols+lo : i*cols+hi] }
			colP := func(k int) []float32 { return p[k*rows+i : min(k*rows+i+4, (k+1)*rows)] }
			colQ := func(k int) []float32 { return q[k*cols+lo : k*cols+hi] }
			if i+4 > rows {
				for r := i; r < rows; r++ {
					for k := range rank {
						op.one(k == 0, row(r), &colP(k)[r-i], colQ(k))
					}
				}
				continue
			}
			m := rows4{row(i), row(i + 1), row(i + 2), row(i + 3)}
			k := 0
			for ; op.two != nil && k+2 <= rank; k += 2 {
				op.two(k == 0, m, colP(k), colQ(k), colP(k+1), colQ(k+1))
			}
			for ; k < rank; k++ {
				op.four(k == 0, m, colP(k), colQ(k))
			}
		}
	}
}

var mulRightOp = Op{"mul_right", func(k *Kernel) {
	clear(slice[float32](k.Args[1]))
	dots.run(k)
}}

// dots adds to p the inner products of rows with q.
var dots = tileOps{
	four: func(_ bool, m rows4, p, q []float32) {
		var sums [4]float32
		n := len(q) &^ 7
		if avx2 {
			dotsAVX2(m[0], m[1], m[2], m[3], q, &sums)
		} else {
			for r := range sums {
				sums[r] = dot8(m[r][:n], q[:n])
			}
		}
		for r, s := range sums {
			for j := n; j < len(q); j++ {
				s += float32(m[r][j] * q[j])
			}
			p[r] += s
		}
	},
	one: func(_ bool, m []float32, p *float32, q []float32) {
		q = q[:len(m)]
		var a, b, c, d float32
		j := 0
		for ; j+3 < len(m); j += 4 {
			a += float32(m[j] * q[j])
			b += float32(m[j+1] * q[j+1])
			c += float32(m[j+2] * q[j+2])
			d += float32(m[j+3] * q[j+3])
		}
		for ; j < len(m); j++ {
			a += float32(m[j] * q[j])
		}
		*p += (a + b) + (c + d)
	},
}

// dot8 is the inner product of x and y, whose length is a multiple of 8, in eight lanes.
func dot8(x, y []float32) float32 {
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	for ; len(x) >= 8 && len(y) >= 8; x, y = x[8:], y[8:] {
		s0 += float32(x[0] * y[0])
		s1 += float32(x[1] * y[1])
		s2 += float32(x[2] * y[2])
		s3 += float32(x[3] * y[3])
		s4 += float32(x[4] * y[4])
		s5 += float32(x[5] * y[5])
		s6 += float32(x[6] * y[6])
		s7 += float32(x[7] * y[7])
	}
	return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
}

var mulLeftOp = Op{"mul_left", func(k *Kernel) {
	clear(slice[float32](k.Args[2]))
	weightedSums.run(k)
}}

// weightedSums adds to q rows, each times its element of p.
var weightedSums = tileOps{
	four: func(_ bool, m rows4, p, q []float32) {
		n := 0
		if avx2 {
			n = weighAVX2(q, m[0], m[1], m[2], m[3], (*[4]float32)(p))
		}
		m0, m1, m2, m3 := m.from(n, len(q))
		a, b, c, d := p[0], p[1], p[2], p[3]
		q = q[n:]
		for j, x := range m0 {
			q[j] += (float32(a*x) + float32(b*m1[j])) + (float32(c*m2[j]) + float32(d*m3[j]))
		}
	},
	one: func(_ bool, m []float32, p *float32, q []float32) { axpy(q, *p, m) },
}

// axpy is y += a x.
func axpy(y []float32, a float32, x []float32) {
	x = x[:len(y)]
	for j, v := range x {
		y[j] += float32(a * v)
	}
}

var outerOp = Op{"outer", outers.run}

// outers sets rows to q times an element of p each, and adds what the later columns give.
var outers = tileOps{
	four: func(first bool, m rows4, p, q []float32) {
		if !first {
			add4(m, 1, p, q)
			return
		}
		n := 0
		if avx2 {
			n = setOuter1AVX2(m[0], m[1], m[2], m[3], q, (*[4]float32)(p))
		}
		m0, m1, m2, m3 := m.from(n, len(q))
		a, b, c, d := p[0], p[1], p[2], p[3]
		for j, x := range q[n:] {
			m0[j] = 0 + float32(a*x)
			m1[j] = 0 + float32(b*x)
			m2[j] = 0 + float32(c*x)
			m3[j] = 0 + float32(d*x)
		}
	},
	two: func(first bool, m rows4, p, q, r, s []float32) {
		if !first {
			add8(m, 1, p, q, r, s)
			return
		}
		n := 0
		if avx2 {
			n = setOuter2AVX2(m[0], m[1], m[2], m[3], q, s, (*[4]float32)(p), (*[4]float32)(r))
		}
		m0, m1, m2, m3 := m.from(n, len(q))
		a, b, c, d := p[0], p[1], p[2], p[3]
		e, f, g, h := r[0], r[1], r[2], r[3]
		s = s[n:len(q)]
		for j, x := range q[n:] {
			y := s[j]
			m0[j] = 0 + float32(a*x) + float32(e*y)
			m1[j] = 0 + float32(b*x) + float32(f*y)
			m2[j] = 0 + float32(c*x) + float32(g*y)
			m3[j] = 0 + float32(d*x) + float32(h*y)
		}
	},
	one: func(first bool, m []float32, p *float32, q []float32) {
		if first {
			clear(m)
		}
		axpy(m, *p, q)
	},
}

var subOuterOp = Op{"sub_outer", subOuters.run}

// subOuters subtracts from rows q times an element of p each.
var subOuters = tileOps{
	four: func(_ bool, m rows4, p, q []float32) { add4(m, -1, p, q) },
	two:  func(_ bool, m rows4, p, q, r, s []float32) { add8(m, -1, p, q, r, s) },
	one:  func(_ bool, m []float32, p *float32, q []float32) { axpy(m, -*p, q) },
}

// add4 adds to four rows q times sign times an element of p each.
func add4(m rows4, sign float32, p, q []float32) {
	a := [4]float32{sign * p[0], sign * p[1], sign * p[2], sign * p[3]}
	n := 0
	if avx2 {
		n = addOuter1AVX2(m[0], m[1], m[2], m[3], q, &a)
	}
	m0, m1, m2, m3 := m.from(n, len(q))
	for j, x := range q[n:] {
		m0[j] += float32(a[0] * x)
		m1[j] += float32(a[1] * x)
		m2[j] += float32(a[2] * x)
		m3[j] += float32(a[3] * x)
	}
}

// add8 is add4 with p and q and then with r and s.
func add8(m rows4, sign float32, p, q, r, s []float32) {
	a := [4]float32{sign * p[0], sign * p[1], sign * p[2], sign * p[3]}
	b := [4]float32{sign * r[0], sign * r[1], sign * r[2], sign * r[3]}
	n := 0
	if avx2 {
		n = addOuter2AVX2(m[0], m[1], m[2], m[3], q, s, &a, &b)
	}
	m0, m1, m2, m3 := m.from(n, len(q))
	s = s[n:len(q)]
	for j, x := range q[n:] {
		y := s[j]
		m0[j] = m0[j] + float32(a[0]*x) + float32(b[0]*y)
		m1[j] = m1[j] + float32(a[1]*x) + float32(b[1]*y)
		m2[j] = m2[j] + float32(a[2]*x) + float32(b[2]*y)
		m3[j] = m3[j] + float32(a[3]*x) + float32(b[3]*y)
	}
}

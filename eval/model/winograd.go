package model

import "github.com/gradpress/gradpress/eval/model/blas"

// winograd computes a 3x3 convolution of stride 1 by Winograd's F(2x2, 3x3) (Lavin and Gray, 2015,
// "Fast Algorithms for Convolutional Neural Networks", section 4.1): each 2x2 tile of the output is
//
//	Aᵀ [ (G g Gᵀ) * (Bᵀ d B) ] A
//
// summed over input channels inside the brackets, d being the 4x4 tile of the input around it and * the
// product of elements. That takes 16 products for 4 outputs where the definition takes 36, in 16 matrix
// products over the tiles, for some additions more. It pays where a matrix product is slow.
type winograd struct {
	cin, cout int
	grid      grid // both sizes are even
	weight    *Param

	u  []float32 // G g Gᵀ, 16 x cout x cin, then its gradient
	v  []float32 // Bᵀ d B for each chunk of images: cin x 16 x pitch
	m  []float32 // what is in brackets, then its gradient: cout x 16 x pitch for each chunk
	dv []float32 // gradient of v of one chunk
	// Scratch of a few rows of pixels, with one more on both sides.
	line [5][]float32
}

// newWinograd returns nil for images of an odd size.
func newWinograd(cin, cout int, g grid, weight *Param) *winograd {
	if g.h%2 != 0 || g.w%2 != 0 {
		return nil
	}
	q := &winograd{cin: cin, cout: cout, grid: g, weight: weight}
	for i := range q.line {
		q.line[i] = grow(nil, g.w+2)
	}
	return q
}

// tiles is how many tiles an image has.
func (q *winograd) tiles() int { return q.grid.h / 2 * (q.grid.w / 2) }

// chunk is how many images are computed at once: about 256 tiles.
func (q *winograd) chunk(batch int) int { return min(batch, max(1, 256/q.tiles())) }

// pitch is the length of a row of tiles in memory. A few more than there are keep the 16 rows of a
// channel off the same places of the cache.
func (q *winograd) pitch(batch int) int { return (q.chunk(batch)*q.tiles()+3)/4*4 + 4 }

// eachChunk calls f with the number of the chunk, its first image and how many there are.
func (q *winograd) eachChunk(batch int, f func(k, b, images int)) {
	per := q.chunk(batch)
	for b := 0; b < batch; b += per {
		f(b/per, b, min(per, batch-b))
	}
}

// forward is that of conv; x has zeros between images.
func (q *winograd) forward(batch int, x, y []float32) {
	pitch, size := q.pitch(batch), q.grid.size(batch)
	vChunk, mChunk := q.cin*16*pitch, q.cout*16*pitch
	chunks := (batch + q.chunk(batch) - 1) / q.chunk(batch)
	q.u = grow(q.u, 16*q.cout*q.cin)
	q.v, q.m = grow(q.v, chunks*vChunk), grow(q.m, chunks*mChunk)
	q.kernels()
	q.eachChunk(batch, func(k, b, images int) {
		n := images * q.tiles()
		v, m := q.v[k*vChunk:], q.m[k*mChunk:]
		for c := range q.cin {
			for i := range images {
				q.windows(x[c*size:][:size], q.grid.at(b+i), v[c*16*pitch+i*q.tiles():], pitch)
			}
		}
		for e := range 16 {
			blas.Gemm(false, false, q.cout, n, q.cin, 1, q.u[e*q.cout*q.cin:], q.cin,
				v[e*pitch:], 16*pitch, 0, m[e*pitch:], 16*pitch)
		}
		for c := range q.cout {
			for i := range images {
				q.outputs(m[c*16*pitch+i*q.tiles():], pitch, q.grid.image(y[c*size:], b+i))
			}
		}
	})
}

// backwardWeight is that of conv.
func (q *winograd) backwardWeight(batch int, dy []float32) {
	pitch, size := q.pitch(batch), q.grid.size(batch)
	vChunk, mChunk := q.cin*16*pitch, q.cout*16*pitch
	// The kernels are needed once more by backwardInput; their gradient takes the place of dv.
	q.dv = grow(q.dv, max(vChunk, len(q.u)))
	du, beta := q.dv[:len(q.u)], float32(0)
	q.eachChunk(batch, func(k, b, images int) {
		v, m := q.v[k*vChunk:], q.m[k*mChunk:]
		for c := range q.cout {
			for i := range images {
				q.outputsBack(q.grid.image(dy[c*size:], b+i), m[c*16*pitch+i*q.tiles():], pitch)
			}
		}
		for e := range 16 {
			blas.Gemm(false, true, q.cout, q.cin, images*q.tiles(), 1, m[e*pitch:], 16*pitch,
				v[e*pitch:], 16*pitch, beta, du[e*q.cout*q.cin:], q.cin)
		}
		beta = 1
	})
	q.kernelsBack(du)
}

// backwardInput is that of conv, after backwardWeight.
func (q *winograd) backwardInput(batch int, skip, dx []float32) {
	pitch, size := q.pitch(batch), q.grid.size(batch)
	q.eachChunk(batch, func(k, b, images int) {
		m := q.m[k*q.cout*16*pitch:]
		for e := range 16 {
			blas.Gemm(true, false, q.cin, images*q.tiles(), q.cout, 1, q.u[e*q.cout*q.cin:], q.cin,
				m[e*pitch:], 16*pitch, 0, q.dv[e*pitch:], 16*pitch)
		}
		for c := range q.cin {
			for i := range images {
				img := q.grid.image(dx[c*size:], b+i)
				q.windowsBack(q.dv[c*16*pitch+i*q.tiles():], pitch, img)
				if skip != nil {
					blas.Axpy(1, q.grid.image(skip[c*size:], b+i), img)
				}
			}
		}
	})
}

// kernels fills u. G is (1 0 0; 1/2 1/2 1/2; 1/2 -1/2 1/2; 0 0 1).
func (q *winograd) kernels() {
	n, plane := q.cin, q.cin*q.cout
	for i := range plane {
		g := q.weight.W[i/n*9*n+i%n:]
		var t [4][3]float32
		for kw := range 3 {
			a, b, c := g[kw*n], g[(3+kw)*n], g[(6+kw)*n]
			t[0][kw], t[1][kw], t[2][kw], t[3][kw] = a, (a+c+b)/2, (a+c-b)/2, c
		}
		for r := range 4 {
			a, b, c := t[r][0], t[r][1], t[r][2]
			u := q.u[4*r*plane+i:]
			u[0], u[plane], u[2*plane], u[3*plane] = a, (a+c+b)/2, (a+c-b)/2, c
		}
	}
}

// kernelsBack adds the adjoint of kernels to the weight's gradient.
func (q *winograd) kernelsBack(du []float32) {
	n, plane := q.cin, q.cin*q.cout
	for i := range plane {
		g := q.weight.G[i/n*9*n+i%n:]
		var t [4][3]float32
		for r := range 4 {
			u := du[4*r*plane+i:]
			a, b, c, d := u[0], u[plane], u[2*plane], u[3*plane]
			t[r] = [3]float32{a + (b+c)/2, (b - c) / 2, d + (b+c)/2}
		}
		for kw := range 3 {
			a, b, c, d := t[0][kw], t[1][kw], t[2][kw], t[3][kw]
			g[kw*n] += a + (b+c)/2
			g[(3+kw)*n] += (b - c) / 2
			g[(6+kw)*n] += d + (b+c)/2
		}
	}
}

// windows is Bᵀ d B for the tiles of one image that begins at x[at]. Bᵀ maps (a b c d) to
// (a-c, b+c, c-b, b-d).
func (q *winograd) windows(x []float32, at int, v []float32, pitch int) {
	w := q.grid.w
	t := q.line[0]
	t[0], t[w+1] = 0, 0
	in := t[1 : w+1]
	for ty := range q.grid.h / 2 {
		r := x[at+(2*ty-1)*w:][:4*w]
		a, b, c, d := r[:w], r[w:][:w], r[2*w:][:w], r[3*w:]
		out := v[ty*w/2:]
		subtract(in, a, c)
		windowRow(t, out, pitch, w/2)
		add(in, b, c)
		windowRow(t, out[4*pitch:], pitch, w/2)
		subtract(in, c, b)
		windowRow(t, out[8*pitch:], pitch, w/2)
		subtract(in, b, d)
		windowRow(t, out[12*pitch:], pitch, w/2)
	}
}

func windowRow(t, v []float32, pitch, n int) {
	v0, v1, v2, v3 := v[:n], v[pitch:][:n], v[2*pitch:][:n], v[3*pitch:][:n]
	a, b := t[0], t[1]
	t = t[2:]
	for i := range v0 {
		c, d := t[0], t[1]
		v0[i], v1[i], v2[i], v3[i] = a-c, b+c, c-b, b-d
		a, b, t = c, d, t[2:]
	}
}

// windowsBack is the adjoint of windows: it writes the gradient of one image.
func (q *winograd) windowsBack(v []float32, pitch int, dx []float32) {
	w := q.grid.w
	var e [4][]float32
	for i := range e {
		e[i] = q.line[i]
	}
	last := q.line[4] // e[3] of the tiles above
	clear(last)
	for ty := range q.grid.h / 2 {
		in := v[ty*w/2:]
		for i := range e {
			windowRowBack(in[4*i*pitch:], e[i], pitch, w/2)
		}
		if ty > 0 {
			above := dx[(2*ty-1)*w:][:w]
			add(above, above, e[0][1:])
		}
		foldRows(dx[2*ty*w:][:w], dx[(2*ty+1)*w:][:w], e[0][1:], e[1][1:], e[2][1:], e[3][1:], last[1:])
		e[3], last = last, e[3]
	}
}

func windowRowBack(v, e []float32, pitch, n int) {
	v0, v1, v2, v3 := v[:n], v[pitch:][:n], v[2*pitch:][:n], v[3*pitch:][:n]
	var c, d float32 // what the tile to the left adds
	for i := range v0 {
		p, q, r, s := v0[i], v1[i], v2[i], v3[i]
		e[0], e[1] = p+c, q-r+s+d
		c, d = q+r-p, -s
		e = e[2:]
	}
	e[0], e[1] = c, d
}

// foldRows is upper = b-c+d-last, lower = b+c-a.
func foldRows(upper, lower, a, b, c, d, last []float32) {
	n := len(upper)
	lower, a, b, c, d, last = lower[:n], a[:n], b[:n], c[:n], d[:n], last[:n]
	for i := range upper {
		upper[i] = b[i] - c[i] + d[i] - last[i]
		lower[i] = b[i] + c[i] - a[i]
	}
}

// outputs is Aᵀ m A for the tiles of one image. Aᵀ maps (a b c d) to (a+b+c, b-c-d).
func (q *winograd) outputs(m []float32, pitch int, y []float32) {
	w := q.grid.w
	a, b, c, d := q.line[0][:w], q.line[1][:w], q.line[2][:w], q.line[3][:w]
	for ty := range q.grid.h / 2 {
		in := m[ty*w/2:]
		outputRow(in, a, pitch)
		outputRow(in[4*pitch:], b, pitch)
		outputRow(in[8*pitch:], c, pitch)
		outputRow(in[12*pitch:], d, pitch)
		upper, lower := y[2*ty*w:][:w], y[(2*ty+1)*w:][:w]
		for i := range upper {
			s, t := b[i], c[i]
			upper[i] = a[i] + s + t
			lower[i] = s - t - d[i]
		}
	}
}

func outputRow(m, to []float32, pitch int) {
	n := len(to) / 2
	m0, m1, m2, m3 := m[:n], m[pitch:][:n], m[2*pitch:][:n], m[3*pitch:][:n]
	for i := range m0 {
		b, c := m1[i], m2[i]
		to[0], to[1] = m0[i]+b+c, b-c-m3[i]
		to = to[2:]
	}
}

// outputsBack is the adjoint of outputs: it writes the gradient of m.
func (q *winograd) outputsBack(dy, m []float32, pitch int) {
	w := q.grid.w
	t := q.line[0][:w]
	for ty := range q.grid.h / 2 {
		upper, lower := dy[2*ty*w:][:w], dy[(2*ty+1)*w:][:w]
		to := m[ty*w/2:]
		outputRowBack(upper, to, pitch, 1)
		add(t, upper, lower)
		outputRowBack(t, to[4*pitch:], pitch, 1)
		subtract(t, upper, lower)
		outputRowBack(t, to[8*pitch:], pitch, 1)
		outputRowBack(lower, to[12*pitch:], pitch, -1)
	}
}

func outputRowBack(from, m []float32, pitch int, sign float32) {
	n := len(from) / 2
	m0, m1, m2, m3 := m[:n], m[pitch:][:n], m[2*pitch:][:n], m[3*pitch:][:n]
	for i := range m0 {
		p, q := sign*from[0], sign*from[1]
		m0[i], m1[i], m2[i], m3[i] = p, p+q, p-q, -q
		from = from[2:]
	}
}

// add is z[i] = x[i] + y[i].
func add(z, x, y []float32) {
	x, y = x[:len(z)], y[:len(z)]
	for i := range z {
		z[i] = x[i] + y[i]
	}
}

// subtract is z[i] = x[i] - y[i].
func subtract(z, x, y []float32) {
	x, y = x[:len(z)], y[:len(z)]
	for i := range z {
		z[i] = x[i] - y[i]
	}
}

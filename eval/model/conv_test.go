package model

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

type convCase struct{ batch, cin, cout, h, w, stride int }

var convCases = []convCase{
	{1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 2}, {1, 2, 3, 4, 4, 1}, {2, 3, 2, 5, 7, 1}, {2, 3, 2, 5, 7, 2}, {3, 2, 4, 6, 8, 2},
	{2, 4, 3, 7, 4, 2}, {1, 1, 2, 2, 1, 2}, {1, 2, 2, 1, 6, 1}, {1, 1, 1, 2, 2, 1}, {2, 9, 8, 6, 10, 1}, {5, 3, 2, 16, 8, 1}, {33, 2, 3, 4, 8, 1}, {45, 2, 3, 5, 5, 1}, {70, 2, 3, 8, 7, 2}, {3, 5, 6, 33, 31, 1}, {3, 2, 3, 64, 35, 2},
}

func (k convCase) String() string {
	return fmt.Sprintf("batch=%d,%d->%d,%dx%d,stride=%d", k.batch, k.cin, k.cout, k.h, k.w, k.stride)
}

func (k convCase) layer() *conv {
	c := newConv("conv", k.cin, k.cout, k.stride, grid{k.h, k.w})
	c.init(stream(3, 0))
	return c
}

// each calls f for every product of the convolution: positions in batch x channel x pixel order, and
// the weight's.
func (k convCase) each(out grid, f func(x, w, y int)) {
	for b := range k.batch {
		for o := range k.cout {
			for y := range out.h {
				for x := range out.w {
					for kh := range 3 {
						for kw := range 3 {
							for c := range k.cin {
								r, s := y*k.stride+kh-1, x*k.stride+kw-1
								if r < 0 || r >= k.h || s < 0 || s >= k.w {
									continue
								}
								f(((b*k.cin+c)*k.h+r)*k.w+s, ((o*3+kh)*3+kw)*k.cin+c, ((b*k.cout+o)*out.h+y)*out.w+x)
							}
						}
					}
				}
			}
		}
	}
}

// sums is a reference result with what bounds the error of any order of summation.
type sums struct{ sum, abs, n []float64 }

func newSums(n int) sums { return sums{make([]float64, n), make([]float64, n), make([]float64, n)} }

func (s sums) add(i int, v float64) {
	s.sum[i] += v
	s.abs[i] += math.Abs(v)
	s.n[i]++
}

func (s sums) check(t *testing.T, c *conv, what string, got []float32) {
	t.Helper()
	for i, want := range s.sum {
		// n products and n sums are rounded, each by half a unit of at most the sum of magnitudes.
		tol := (s.n[i] + 1) * eps32 * s.abs[i]
		if c.wino != nil {
			// The 4x4 transforms add some ten roundings, and of neighbouring values too, which cancel.
			tol = (s.n[i] + 10) * eps32 * 4 * slices.Max(s.abs)
		}
		if !(math.Abs(float64(got[i])-want) <= tol) {
			t.Fatalf("%s[%d] is %v, want %v +- %v", what, i, got[i], want, tol)
		}
	}
}

func TestConvAgainstLoops(t *testing.T) {
	for _, k := range convCases {
		t.Run(k.String(), func(t *testing.T) { checkConv(t, k, k.layer()) })
		if c := k.layer(); k.stride == 1 && k.h%2 == 0 && k.w%2 == 0 {
			c.wino = newWinograd(k.cin, k.cout, c.in, c.weight)
			t.Run("winograd,"+k.String(), func(t *testing.T) { checkConv(t, k, c) })
		}
	}
}

func checkConv(t *testing.T, k convCase, c *conv) {
	t.Helper()
	// The layer has seen a batch of another size, so its memory is used and laid out otherwise.
	copy(c.input(k.batch+1), normals(len(c.input(k.batch+1)), 1, 5))
	c.forward(k.batch+1, make([]float32, k.cout*c.out.size(k.batch+1)))

	x := normals(k.batch*k.cin*k.h*k.w, 1, 1)
	dy := normals(k.batch*k.cout*c.out.h*c.out.w, 1, 2)
	skip := normals(k.batch*k.cin*c.out.h*c.out.w, 1, 4)
	y, dw, dx := newSums(len(dy)), newSums(len(c.weight.W)), newSums(len(x))
	fill(c.weight.G, 2) // backward adds to it
	for i := range dw.sum {
		dw.add(i, 2)
	}
	k.each(c.out, func(i, j, o int) {
		xi, wj, g := float64(x[i]), float64(c.weight.W[j]), float64(dy[o])
		y.add(o, xi*wj)
		dw.add(j, xi*g)
		dx.add(i, wj*g)
	})
	for i, v := range skip {
		s, r, bc := i%c.out.w, i/c.out.w%c.out.h, i/(c.out.w*c.out.h)
		dx.add((bc*k.h+r*k.stride)*k.w+s*k.stride, float64(v))
	}

	nan := float32(math.NaN())
	out := pack(c.out, k.batch, k.cout, dy, nan)
	copy(c.input(k.batch), pack(c.in, k.batch, k.cin, x, 0))
	c.forward(k.batch, out)
	y.check(t, c, "y", unpack(c.out, k.batch, k.cout, out))

	grad := pack(c.out, k.batch, k.cout, dy, 0)
	c.backwardWeight(k.batch, grad)
	dw.check(t, c, "dw", c.weight.G)

	din := make([]float32, k.cin*c.in.size(k.batch))
	c.backwardInput(k.batch, grad, pack(c.out, k.batch, k.cin, skip, 0), din)
	dx.check(t, c, "dx", unpack(c.in, k.batch, k.cin, din))

	centre := unpack(c.out, k.batch, k.cin, c.centre(k.batch))
	for i, v := range centre {
		s, r, bc := i%c.out.w, i/c.out.w%c.out.h, i/(c.out.w*c.out.h)
		if want := x[(bc*k.h+r*k.stride)*k.w+s*k.stride]; v != want {
			t.Fatalf("centre[%d] is %v, want %v", i, v, want)
		}
	}
}

func TestConvGradients(t *testing.T) {
	for _, k := range convCases[2:8] {
		t.Run(k.String(), func(t *testing.T) {
			c := k.layer()
			x := normals(k.batch*k.cin*k.h*k.w, 1, 1)
			r := pack(c.out, k.batch, k.cout, normals(k.batch*k.cout*c.out.h*c.out.w, 1, 2), 0)
			out := make([]float32, len(r))
			loss := func() float64 {
				copy(c.input(k.batch), pack(c.in, k.batch, k.cin, x, 0))
				c.forward(k.batch, out)
				return weigh(r, out)
			}
			loss()
			c.backwardWeight(k.batch, r)
			dx := make([]float32, k.cin*c.in.size(k.batch))
			c.backwardInput(k.batch, r, nil, dx)
			checkGradients(t, []variable{
				{"weight", c.weight.W, c.weight.G},
				{"input", x, unpack(c.in, k.batch, k.cin, dx)},
			}, weighNoise(r, out, 9*k.cin), loss)
		})
	}
}

package model

import (
	"math"
	"math/rand/v2"
	"testing"
)

const eps32 = 1.0 / (1 << 23)

// variable is something that a loss depends on, and the gradient that backward computed for it.
type variable struct {
	name string
	x, g []float32
}

// checkGradients compares each gradient with central differences of loss along a few directions.
//
// A central difference of step h/2 is off by up to 2*noise/h for rounding, where noise is the rounding
// error of a loss, and by c*h^2/4 for curvature. Going from h to h/2 changes the latter by 3/4 of c*h^2,
// so twice the change bounds it. (loss must not have a kink of ReLU there.) The sum is the tolerance. The
// step is the least that brings it under 4 % of the derivative; if none does, the test would mean nothing
// and fails. For that the directions lean on the gradient: in others derivatives are small.
func checkGradients(t *testing.T, vars []variable, noise float64, loss func() float64) {
	t.Helper()
	rng := stream(9, 9)
	for _, v := range vars {
		for range 2 {
			d := direction(v.g, rng)
			var want, norm float64
			for i, x := range v.x {
				want += d[i] * float64(v.g[i])
				norm += float64(x) * float64(x)
			}
			got, tol := 0.0, math.Inf(1)
			for _, part := range []float64{16384, 4096, 1024, 256, 64, 16} {
				h := max(1, math.Sqrt(norm)) / part
				wide := centralSlope(v.x, d, h, loss)
				slope := centralSlope(v.x, d, h/2, loss)
				got, tol = slope, 2*math.Abs(slope-wide)+2*noise/h
				if tol < 0.04*math.Abs(want) {
					break
				}
			}
			if tol > 0.04*math.Abs(want) {
				t.Errorf("%s: slope %.6g can only be measured as %.6g +- %.2g", v.name, want, got, tol)
			} else if math.Abs(got-want) > tol {
				t.Errorf("%s: slope is %.6g +- %.2g, the gradient says %.6g", v.name, got, tol, want)
			}
		}
	}
}

// centralSlope is the mean slope of loss between x-h*d and x+h*d.
func centralSlope(x []float32, d []float64, h float64, loss func() float64) float64 {
	w := append([]float32(nil), x...)
	var rise, run float64
	for _, sign := range []float64{1, -1} {
		for i := range x {
			x[i] = float32(float64(w[i]) + sign*h*d[i])
			run += sign * d[i] * float64(x[i]-w[i]) // after rounding to float32, along d
		}
		rise += sign * loss()
	}
	copy(x, w)
	return rise / run
}

// direction is a unit vector: a random half of g's entries and some noise in all.
func direction(g []float32, rng *rand.Rand) []float64 {
	var sq float64
	for _, v := range g {
		sq += float64(v) * float64(v)
	}
	rms := math.Sqrt(sq/float64(len(g))) + 1e-9
	d := make([]float64, len(g))
	var norm float64
	for i, v := range g {
		d[i] = 0.5 * rms * rng.NormFloat64()
		if len(g) == 1 || rng.Uint32()&1 == 0 {
			d[i] += float64(v)
		}
		norm += d[i] * d[i]
	}
	for i := range d {
		d[i] /= math.Sqrt(norm)
	}
	return d
}

// normals is n normal values of the given scale.
func normals(n int, scale float64, seed uint64) []float32 {
	x := make([]float32, n)
	fillNormal(x, scale, stream(seed, 0))
	return x
}

// weigh is the loss of a layer under test: the sum of r[i]*out[i], whose gradient in out is r.
func weigh(r, out []float32) float64 {
	var sum float64
	for i, v := range r {
		sum += float64(v) * float64(out[i])
	}
	return sum
}

// weighNoise is the rounding error of weigh if each value is computed with k roundings that hit
// independently.
func weighNoise(r, out []float32, k int) float64 {
	var sq float64
	for i, v := range r {
		sq += math.Pow(float64(v)*float64(out[i]), 2)
	}
	return eps32 * math.Sqrt(float64(k)*sq)
}

// pack lays channels x batch images, given as batch x channels x pixels, out on g, and unpack is its
// inverse. What lies between images is junk for those who promise not to read it, or zero.
func pack(g grid, batch, channels int, x []float32, between float32) []float32 {
	size, pixels := g.size(batch), g.h*g.w
	y := make([]float32, channels*size)
	fill(y, between)
	for c := range channels {
		for b := range batch {
			copy(g.image(y[c*size:], b), x[(b*channels+c)*pixels:][:pixels])
		}
	}
	return y
}

func unpack(g grid, batch, channels int, y []float32) []float32 {
	size, pixels := g.size(batch), g.h*g.w
	x := make([]float32, batch*channels*pixels)
	for c := range channels {
		for b := range batch {
			copy(x[(b*channels+c)*pixels:], g.image(y[c*size:], b))
		}
	}
	return x
}

package model

import (
	"fmt"
	"math"
	"testing"
)

type normCase struct {
	batch, channels int
	grid            grid
	residual        int // channels of the residual
}

var normCases = []normCase{
	{1, 1, grid{1, 2}, 0}, {2, 3, grid{3, 5}, 0}, {3, 4, grid{4, 4}, 4}, {2, 5, grid{5, 3}, 2}, {4, 2, grid{8, 8}, 2},
}

func (k normCase) String() string { return fmt.Sprint(k.batch, k.channels, k.grid, k.residual) }

func (k normCase) layer() *batchNorm {
	n := newBatchNorm("bn", k.channels, k.grid)
	fillNormal(n.gamma.W, 1, stream(1, 1))
	fillNormal(n.beta.W, 1, stream(1, 2))
	return n
}

func (k normCase) values(channels int, seed uint64) []float32 {
	return normals(k.batch*channels*k.grid.h*k.grid.w, 1, seed)
}

// slowNorm is the definition, in float64: out, and the batch's mean and unbiased variance.
func (k normCase) slowNorm(n *batchNorm, y, res []float32, stats func(c int) (mean, variance float64)) []float64 {
	pixels := k.grid.h * k.grid.w
	out := make([]float64, len(y))
	for c := range k.channels {
		mean, variance := stats(c)
		for b := range k.batch {
			for p := range pixels {
				i := (b*k.channels+c)*pixels + p
				v := float64(n.gamma.W[c])*(float64(y[i])-mean)/math.Sqrt(variance+1e-5) + float64(n.beta.W[c])
				if c < k.residual {
					v += float64(res[(b*k.residual+c)*pixels+p])
				}
				out[i] = math.Max(0, v)
			}
		}
	}
	return out
}

func (k normCase) batchStats(y []float32, c int) (mean, biased, unbiased float64) {
	pixels := k.grid.h * k.grid.w
	count := float64(k.batch * pixels)
	for b := range k.batch {
		for _, v := range y[(b*k.channels+c)*pixels:][:pixels] {
			mean += float64(v) / count
		}
	}
	for b := range k.batch {
		for _, v := range y[(b*k.channels+c)*pixels:][:pixels] {
			biased += (float64(v) - mean) * (float64(v) - mean) / count
		}
	}
	return mean, biased, biased * count / (count - 1)
}

func TestBatchNormAgainstDefinition(t *testing.T) {
	for _, k := range normCases {
		t.Run(k.String(), func(t *testing.T) {
			n := k.layer()
			y, res := k.values(k.channels, 3), k.values(k.residual, 4)
			nan := float32(math.NaN())
			copy(n.input(k.batch), pack(k.grid, k.batch, k.channels, y, nan))
			out := make([]float32, k.channels*k.grid.size(k.batch))
			fill(out, nan)
			packedRes := pack(k.grid, k.batch, k.residual, res, 0)
			// About ten roundings of values up to about ten.
			const tol = 100 * eps32
			compare := func(what string, want []float64) {
				t.Helper()
				for i, v := range unpack(k.grid, k.batch, k.channels, out) {
					if !(math.Abs(float64(v)-want[i]) <= tol) {
						t.Fatalf("%s: out[%d] is %v, want %v", what, i, v, want[i])
					}
				}
			}
			n.forward(k.batch, packedRes, out)
			compare("training", k.slowNorm(n, y, res, func(c int) (float64, float64) {
				mean, biased, _ := k.batchStats(y, c)
				return mean, biased
			}))
			for c := range k.channels {
				mean, _, unbiased := k.batchStats(y, c)
				if want := 0.1 * mean; math.Abs(float64(n.mean.X[c])-want) > tol {
					t.Errorf("running mean is %v, want %v", n.mean.X[c], want)
				}
				if want := 0.9 + 0.1*unbiased; math.Abs(float64(n.spread.X[c])-want) > tol {
					t.Errorf("running variance is %v, want %v", n.spread.X[c], want)
				}
				for b := range k.batch + 1 {
					for _, v := range out[c*k.grid.size(k.batch)+b*(k.grid.h+1)*k.grid.w:][:k.grid.w] {
						if v != 0 {
							t.Fatalf("out has %v between images, want 0", v)
						}
					}
				}
			}
			n.infer(k.batch, packedRes, out)
			compare("inference", k.slowNorm(n, y, res, func(c int) (float64, float64) {
				return float64(n.mean.X[c]), float64(n.spread.X[c])
			}))
		})
	}
}

func TestBatchNormGradients(t *testing.T) {
	for _, k := range normCases[1:] { // two values of one channel always become +1 and -1
		t.Run(k.String(), func(t *testing.T) {
			n := k.layer()
			y, res := k.values(k.channels, 3), k.values(k.residual, 4)
			r := pack(k.grid, k.batch, k.channels, k.values(k.channels, 5), 0)
			out := make([]float32, len(r))
			loss := func() float64 {
				copy(n.input(k.batch), pack(k.grid, k.batch, k.channels, y, 7))
				n.forward(k.batch, pack(k.grid, k.batch, k.residual, res, 0), out)
				return weigh(r, out)
			}
			loss()
			g, dy := append([]float32(nil), r...), make([]float32, len(r))
			n.backward(k.batch, out, g, dy)
			vars := []variable{
				{"gamma", n.gamma.W, n.gamma.G}, {"beta", n.beta.W, n.beta.G},
				{"input", y, unpack(k.grid, k.batch, k.channels, dy)},
			}
			if k.residual > 0 {
				vars = append(vars, variable{"residual", res, unpack(k.grid, k.batch, k.residual, g)})
			}
			checkGradients(t, vars, weighNoise(r, out, 10), loss)
		})
	}
}

func TestBatchNormShowsNaN(t *testing.T) {
	k := normCases[2]
	n := k.layer()
	y := k.values(k.channels, 3)
	y[0] = float32(math.Copysign(math.NaN(), -1))
	copy(n.input(k.batch), pack(k.grid, k.batch, k.channels, y, 0))
	out := make([]float32, k.channels*k.grid.size(k.batch))
	n.forward(k.batch, nil, out)
	if v := k.grid.image(out, 0)[0]; !math.IsNaN(float64(v)) {
		t.Fatalf("NaN became %v", v)
	}
}

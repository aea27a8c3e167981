package model

import (
	"math/rand/v2"

	"github.com/gradpress/gradpress/eval/model/blas"
)

// linear is y = x*Wᵀ + b for rows of x.
type linear struct {
	in, out      int
	weight, bias *Param // out x in, out

	x []float32 // input, rows x in
}

func newLinear(name string, in, out int) *linear {
	return &linear{in: in, out: out, weight: newParam(name+".weight", out, in), bias: newParam(name+".bias", out)}
}

// init draws weight and bias uniformly from +-1/sqrt(in).
func (l *linear) init(rng *rand.Rand) {
	fillUniform(l.weight.W, bound(l.in), rng)
	fillUniform(l.bias.W, bound(l.in), rng)
}

// input is where whoever comes before puts rows x in values.
func (l *linear) input(rows int) []float32 {
	l.x = grow(l.x, rows*l.in)
	return l.x
}

// forward writes rows x out values.
func (l *linear) forward(rows int, y []float32) {
	for r := range rows {
		copy(y[r*l.out:][:l.out], l.bias.W)
	}
	blas.Gemm(false, true, rows, l.out, l.in, 1, l.x, l.in, l.weight.W, l.in, 1, y, l.out)
}

// backwardWeight adds to the gradients of weight and bias.
func (l *linear) backwardWeight(rows int, dy []float32) {
	addRows(l.bias.G, dy[:rows*l.out])
	blas.Gemm(true, false, l.out, l.in, rows, 1, dy, l.out, l.x, l.in, 1, l.weight.G, l.in)
}

// backwardInput writes the input's gradient, rows x in.
func (l *linear) backwardInput(rows int, dy, dx []float32) {
	blas.Gemm(false, false, rows, l.in, l.out, 1, dy, l.out, l.weight.W, l.in, 0, dx, l.in)
}

// addRows adds each row of x, as long as sum, to sum.
func addRows(sum, x []float32) {
	for ; len(x) > 0; x = x[len(sum):] {
		blas.Axpy(1, x[:len(sum)], sum)
	}
}

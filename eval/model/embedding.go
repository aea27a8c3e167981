package model

import (
	"math/rand/v2"

	"github.com/gradpress/gradpress/eval/model/blas"
)

// embedding looks up one row of its weight for each id.
type embedding struct {
	dim    int
	weight *Param // vocab x dim
}

func newEmbedding(name string, vocab, dim int) *embedding {
	return &embedding{dim: dim, weight: newParam(name+".weight", vocab, dim)}
}

// init draws from the normal distribution with standard deviation 0.1.
func (e *embedding) init(rng *rand.Rand) { fillNormal(e.weight.W, 0.1, rng) }

// forward writes len(ids) x dim values.
func (e *embedding) forward(ids []int32, y []float32) {
	for i, id := range ids {
		copy(y[i*e.dim:][:e.dim], e.weight.W[int(id)*e.dim:])
	}
}

// backwardWeight adds to the weight's gradient.
func (e *embedding) backwardWeight(ids []int32, dy []float32) {
	for i, id := range ids {
		blas.Axpy(1, dy[i*e.dim:][:e.dim], e.weight.G[int(id)*e.dim:])
	}
}

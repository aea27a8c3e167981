package ratio

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
)

// source draws gradients: every element is independent of all others, a normal times a log-normal, as heavy-tailed as the gradients of
// deep networks. Both factors come from tables, so that a hundred million take a second.
type source struct {
	seed           uint64
	normal, spread [1 << tableBits]float32
}

const tableBits = 12

func newSource(seed uint64) *source {
	s := &source{seed: seed}
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range s.normal {
		s.normal[i] = float32(rng.NormFloat64())
		s.spread[i] = float32(math.Exp(1.5 * rng.NormFloat64()))
	}
	return s
}

// fill draws a tensor's gradient of a step. The scale is the tensor's own, between 1e-5 and 1e-1.
func (s *source) fill(x []float32, name string, step int) {
	h := fnv.New64a()
	h.Write([]byte(name))
	rng := rand.NewPCG(s.seed, h.Sum64())
	scale := float32(math.Pow(10, -5+4*float64(rng.Uint64()>>11)*0x1p-53))
	rng.Seed(s.seed+uint64(step)+1, h.Sum64())
	const mask = 1<<tableBits - 1
	draw := func(w uint64) float32 { return scale * s.normal[w&mask] * s.spread[w>>tableBits&mask] }
	i := 0
	for ; i+1 < len(x); i += 2 {
		w := rng.Uint64()
		x[i], x[i+1] = draw(w), draw(w>>(2*tableBits))
	}
	if i < len(x) {
		x[i] = draw(rng.Uint64())
	}
}

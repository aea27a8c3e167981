package eval

import (
	"math"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/eval/model"
)

// sgd is stochastic gradient descent with momentum and weight decay. Where a method owns the momentum only the decay has one here, in a
// buffer that is never exchanged: without it the decay would be 1/(1-m) times weaker than in a dense run.
type sgd struct {
	params   []*model.Param
	u        [][]float32
	momentum float32 // of the mean gradient
	decayed  float32 // of the weight decay
	decay    float32
}

func newSGD(params []*model.Param, momentum, decay float64, owned compress.Momentum) *sgd {
	o := &sgd{params: params, momentum: float32(momentum), decayed: float32(momentum), decay: float32(decay)}
	if owned.M != 0 {
		o.momentum, o.decayed = 0, owned.M
	}
	for _, p := range params {
		o.u = append(o.u, make([]float32, len(p.W)))
	}
	return o
}

// step applies the mean gradients at a learning rate and clears them.
func (o *sgd) step(lr float64) {
	rate := float32(lr)
	for i, p := range o.params {
		u, g, w := o.u[i], p.G, p.W
		g, w = g[:len(u)], w[:len(u)]
		if o.momentum == 0 && o.decayed != 0 {
			for j, b := range u {
				b = o.decayed*b + o.decay*w[j]
				u[j] = b
				w[j] -= rate * (g[j] + b)
				g[j] = 0
			}
			continue
		}
		for j, b := range u {
			b = o.momentum*b + g[j] + o.decay*w[j]
			u[j] = b
			w[j] -= rate * b
			g[j] = 0
		}
	}
}

// rate is the learning rate at a step: up to LR over the first steps where the task wants that, and from LR to zero along half a cosine.
func (s Settings) rate(step int) float64 {
	lr := s.LR * 0.5 * (1 + math.Cos(math.Pi*float64(step)/float64(s.Steps)))
	if rise := s.Rise * float64(s.Steps); float64(step) < rise {
		lr *= float64(step+1) / (rise + 1)
	}
	return lr
}

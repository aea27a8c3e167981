// Package model holds the small models that gradpress trains to judge compressors: CIFAR-style
// residual networks and a word or character LSTM. Every layer has an explicit backward pass over
// plain float32 slices, so that gradients become final one by one, last layer first, as a
// data-parallel reducer expects. One model belongs to one goroutine and starts none.
package model

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Param is one trainable tensor, row-major. Backward adds to G; whoever steps the optimizer clears
// it. G may be re-pointed between steps, for example into a bucket.
type Param struct {
	Name  string
	Shape []int
	W, G  []float32
}

// Buffer is state that is neither trained nor exchanged: the running statistics of batch norm.
type Buffer struct {
	Name string
	X    []float32
}

// Batch is one mini-batch. Images: X is Size x channels x height x width, Labels has Size classes.
// Text: Tokens is T x Size input ids, time first, and Labels is T x Size ids of the tokens that follow.
type Batch struct {
	Size           int
	X              []float32
	Tokens, Labels []int32
}

// Model is a network with its loss.
type Model interface {
	// Params are in forward order; names, order and shapes are those of every replica.
	Params() []*Param
	Buffers() []*Buffer

	// Step runs forward and backward on b in training mode, adds the gradient of the mean loss to each
	// Param.G and returns that loss in nats. It calls ready(i) as soon as gradient i is final: from the
	// last parameter to the first, once each, while the rest of backward is still to come. ready may be
	// nil; its error stops the step. A batch of the wrong shape is an error and changes nothing.
	Step(b Batch, ready func(i int) error) (loss float64, err error)

	// Eval runs forward in inference mode. It returns the sum of the losses in nats, the number of
	// predictions whose highest score is the label's, and the number of predictions. It changes neither
	// parameters, buffers nor the state that Step carries. A batch of the wrong shape panics.
	Eval(b Batch) (loss float64, correct, count int)

	// Reset forgets what Step carries from batch to batch, ResetEval what Eval does: h and c of the
	// LSTM. Image models carry nothing.
	Reset()
	ResetEval()

	// Carried is a copy of what Step carries, empty where that is nothing; SetCarried puts it back, into a
	// model of the same shape.
	Carried() []float32
	SetCarried(x []float32) error
}

func newParam(name string, shape ...int) *Param {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return &Param{Name: name, Shape: shape, W: grow(nil, n), G: grow(nil, n)}
}

// grow returns x with length n, in its own memory if that is large enough. What x held is lost in
// any case. No allocation is under eight floats: the allocator aligns those to 16 bytes, and the
// order in which gonum adds up a dot product depends on the alignment.
func grow(x []float32, n int) []float32 {
	if n <= cap(x) {
		return x[:n]
	}
	return make([]float32, n, max(n, 8))
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}

// stream is a model's own random numbers: the same seed and purpose give the same weights.
func stream(seed, purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, purpose)) }

// fillUniform draws from [-bound, bound).
func fillUniform(x []float32, bound float64, rng *rand.Rand) {
	for i := range x {
		x[i] = float32(bound * (2*rng.Float64() - 1))
	}
}

// fillNormal draws with mean 0 and standard deviation sd.
func fillNormal(x []float32, sd float64, rng *rand.Rand) {
	for i := range x {
		x[i] = float32(sd * rng.NormFloat64())
	}
}

// countdown announces final gradients. Backward passes run in exactly the reverse of forward order,
// so the next gradient to be final is always the one before the last announced.
type countdown struct {
	ready func(i int) error
	next  int
}

// final announces n more gradients.
func (c *countdown) final(n int) error {
	for range n {
		c.next--
		if c.ready == nil {
			continue
		}
		if err := c.ready(c.next); err != nil {
			return err
		}
	}
	return nil
}

func checkIDs(what string, ids []int32, n int) error {
	for i, id := range ids {
		if id < 0 || int(id) >= n {
			return fmt.Errorf("model: %s %d is %d, want 0 to %d", what, i, id, n-1)
		}
	}
	return nil
}

// bound is that of a uniform distribution that keeps the scale of a sum of fanIn inputs near 1.
func bound(fanIn int) float64 { return 1 / math.Sqrt(float64(fanIn)) }

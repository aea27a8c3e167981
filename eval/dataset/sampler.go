package dataset

import (
	"fmt"
	"math/rand/v2"
)

// Sampler deals the images of a train split out to the workers of a run. Each epoch is a
// permutation of all images, the same on every worker, and the epochs follow each other without
// a gap: step t takes the next N*b images of that order, of which worker r has those from r*b on.
// So every batch is full, every image is seen once an epoch, and no image is dropped; a
// batch may straddle the end of an epoch. One goroutine only.
type Sampler struct {
	n, batch, rank, size int
	seed                 uint64
	pcg                  *rand.PCG
	rng                  *rand.Rand
	epoch                int     // the epoch that order holds, -1 for none
	order, idx           []int32 // n; batch
}

// NewSampler serves worker rank of size with batches out of n images.
func NewSampler(n, batch, rank, size int, seed uint64) (*Sampler, error) {
	if err := checkShare(batch, rank, size); err != nil {
		return nil, err
	}
	if n <= 0 || int64(n) > 1<<31-1 {
		return nil, fmt.Errorf("dataset: %d images to sample from; there must be 1 to 2^31-1", n)
	}
	s := &Sampler{n: n, batch: batch, rank: rank, size: size, seed: seed, epoch: -1,
		pcg: new(rand.PCG), order: make([]int32, n), idx: make([]int32, batch)}
	s.rng = rand.New(s.pcg)
	return s, nil
}

func checkShare(batch, rank, size int) error {
	if batch <= 0 {
		return fmt.Errorf("dataset: batch is %d; it must be positive", batch)
	}
	if size <= 0 || rank < 0 || rank >= size {
		return fmt.Errorf("dataset: rank %d of %d workers; it must be in [0, workers)", rank, size)
	}
	return nil
}

// Batch is this worker's images of a step, counted from 0. The slice is good until the next call.
// Steps may come in any order, so a resumed run goes on where it stopped; only a change of
// epoch costs more than a copy.
func (s *Sampler) Batch(step int) []int32 {
	at := (step*s.size + s.rank) * s.batch
	for k := range s.idx {
		s.load((at + k) / s.n)
		s.idx[k] = s.order[(at+k)%s.n]
	}
	return s.idx
}

// Steps is the number of steps after which every image has been seen epochs times.
func (s *Sampler) Steps(epochs int) int {
	global := s.size * s.batch
	return (epochs*s.n + global - 1) / global
}

// load puts the permutation of an epoch into order.
func (s *Sampler) load(epoch int) {
	if epoch == s.epoch {
		return
	}
	s.epoch = epoch
	reseed(s.pcg, s.seed, purposeOrder, epoch)
	for i := range s.order {
		s.order[i] = int32(i)
	}
	for i := s.n - 1; i > 0; i-- {
		j := s.rng.IntN(i + 1)
		s.order[i], s.order[j] = s.order[j], s.order[i]
	}
}

// Streams deals a text out to the workers of a run for training with carried state. The text is
// cut into N*b streams of equal length, laid end to end; worker r has those from r*b to (r+1)*b, and a
// step takes the next T tokens of each. When less than T are left all streams begin again.
type Streams struct {
	tokens         []int32
	batch, steps   int
	first          int // the first stream of this worker
	length, passes int // tokens a stream; steps before the streams begin again
}

// NewStreams serves worker rank of size with batch streams out of tokens, steps (T) tokens at a time.
func NewStreams(tokens []int32, batch, steps, rank, size int) (*Streams, error) {
	if err := checkShare(batch, rank, size); err != nil {
		return nil, err
	}
	if steps <= 0 {
		return nil, fmt.Errorf("dataset: %d tokens a step; it must be positive", steps)
	}
	length := (len(tokens) - 1) / (batch * size) // the last input needs a label
	if length < steps {
		return nil, fmt.Errorf("dataset: %d tokens are too few for %d workers x %d streams x %d tokens and one more",
			len(tokens), size, batch, steps)
	}
	return &Streams{tokens: tokens, batch: batch, steps: steps, first: rank * batch,
		length: length, passes: length / steps}, nil
}

// Batch writes this worker's tokens of a step, counted from 0, to in and the tokens that follow
// each of them to next, both T x b: time first. It reports whether the streams begin here, so that
// a carried state must be reset; step 0 is such a step. It allocates nothing.
func (s *Streams) Batch(step int, in, next []int32) (reset bool) {
	if len(in) != s.steps*s.batch || len(next) != len(in) {
		panic(fmt.Sprintf("dataset: Streams.Batch: len(in) %d and len(next) %d, want %d x %d", len(in), len(next), s.steps, s.batch))
	}
	pos := step % s.passes * s.steps
	for j := range s.batch {
		src := s.tokens[(s.first+j)*s.length+pos:][:s.steps+1]
		for t := range s.steps {
			in[t*s.batch+j], next[t*s.batch+j] = src[t], src[t+1]
		}
	}
	return pos == 0
}

// Steps is the number of steps in one pass over the text.
func (s *Streams) Steps() int { return s.passes }

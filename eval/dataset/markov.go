package dataset

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
)

// The source has structure that a small recurrent network finds in some 10^5 tokens, and still
// needs both symbols of its context. The distribution of the next of 32 symbols depends on the last
// symbol and on whether the one before is even or odd: 64 distributions instead of 1024 unrelated
// ones, which could only be learnt by heart. Each is a draw from a Dirichlet distribution of
// concentration 0.1, so that a few symbols have most of the mass: the entropy rate is near 1.8
// nats, the best guess from the last symbol alone loses 2.3 and one from no symbol 3.4. A share of
// 1/64 is spread evenly, so every pair leads to every other, the stationary distribution is unique,
// and no loss is infinite. A one-layer LSTM of width 128 trained with Adam is 0.1 above the floor after
// 300,000 tokens.
const (
	markovVocab    = 32
	markovKinds    = 2
	concentration  = 0.1
	evenShare      = 1.0 / 64
	markovTrain    = 400_000
	markovValid    = 20_000
	markovChunk    = 1 << 14 // tokens between looks at the context
	maxIterations  = 100_000
	stationaryDiff = 1e-13 // L1 distance of two iterates at which the iteration stops
)

// Markov is text from a random order-2 source over 32 symbols, drawn from Options.Seed together with
// the text: 400,000 tokens to train on and 20,000 to validate. Floor is its exact entropy rate.
func Markov(ctx context.Context, o Options) (*Text, error) {
	n, err := o.trainSize(markovTrain)
	if err != nil {
		return nil, err
	}
	src := randomSource(o.Seed)
	pairs, err := stationary(src)
	if err != nil {
		return nil, err
	}
	d := &Text{Name: "markov", Vocab: src.vocab, Floor: entropyRate(src, pairs)}
	if d.Train, err = src.sample(ctx, n, pairs, o.Seed, purposeTrain); err != nil {
		return nil, err
	}
	if d.Valid, err = src.sample(ctx, markovValid, pairs, o.Seed, purposeTest); err != nil {
		return nil, err
	}
	return d, nil
}

// source is an order-2 Markov source.
type source struct {
	vocab int
	next  []float64 // vocab x vocab x vocab: the chance of the last index after the first two
}

// after is the distribution that follows the symbols a, b.
func (s *source) after(a, b int) []float64 {
	return s.next[(a*s.vocab+b)*s.vocab:][:s.vocab]
}

func randomSource(seed uint64) *source {
	var pcg rand.PCG
	reseed(&pcg, seed, purposeSource, 0)
	rng := rand.New(&pcg)
	s := &source{vocab: markovVocab, next: make([]float64, markovVocab*markovVocab*markovVocab)}
	var shared [markovKinds][markovVocab][markovVocab]float64
	for kind := range shared {
		for b := range shared[kind] {
			dirichlet(rng, shared[kind][b][:])
		}
	}
	for a := range s.vocab {
		for b := range s.vocab {
			for c, p := range shared[a%markovKinds][b] {
				s.after(a, b)[c] = float64((1-evenShare)*p) + evenShare/markovVocab
			}
		}
	}
	return s
}

// dirichlet fills p with a draw from the symmetric Dirichlet distribution of the set concentration.
func dirichlet(rng *rand.Rand, p []float64) {
	sum := 0.0
	for sum == 0 { // all draws may underflow
		sum = 0
		for i := range p {
			p[i] = gamma(rng, concentration)
			sum += p[i]
		}
	}
	for i := range p {
		p[i] /= sum
	}
}

// gamma draws from the gamma distribution of shape k < 1 by the method of Marsaglia and Tsang (2000)
// for shape k+1, scaled by U^(1/k). The conversions keep compilers from fusing a multiplication and an
// addition, which would change the data from one processor to another.
func gamma(rng *rand.Rand, k float64) float64 {
	d := k + 1 - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + float64(c*x)
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-rng.Float64()) < float64(x*x/2)+float64(d*(1-v+math.Log(v))) {
			return d * v * math.Pow(1-rng.Float64(), 1/k)
		}
	}
}

// stationary is the stationary distribution of the pairs of symbols, vocab x vocab, by power
// iteration.
func stationary(s *source) ([]float64, error) {
	v := s.vocab
	p, q := make([]float64, v*v), make([]float64, v*v)
	for i := range p {
		p[i] = 1 / float64(v*v)
	}
	for range maxIterations {
		clear(q)
		for a := range v {
			for b := range v {
				weight := p[a*v+b]
				to := q[b*v:][:v]
				for c, chance := range s.after(a, b) {
					to[c] += float64(weight * chance)
				}
			}
		}
		sum := 0.0
		for _, x := range q {
			sum += x
		}
		diff := 0.0
		for i := range q {
			q[i] /= sum
			diff += math.Abs(q[i] - p[i])
		}
		p, q = q, p
		if diff < stationaryDiff {
			return p, nil
		}
	}
	return nil, errors.New("dataset: markov: the stationary distribution did not converge")
}

// entropyRate is the mean entropy of the next symbol, in nats, over the stationary pairs.
func entropyRate(s *source, pairs []float64) float64 {
	rate := 0.0
	for a := range s.vocab {
		for b := range s.vocab {
			h := 0.0
			for _, p := range s.after(a, b) {
				if p > 0 {
					h -= float64(p * math.Log(p))
				}
			}
			rate += float64(pairs[a*s.vocab+b] * h)
		}
	}
	return rate
}

// sample draws n tokens. The first two come from the stationary distribution, so that all do.
func (s *source) sample(ctx context.Context, n int, pairs []float64, seed uint64, purpose int) ([]int32, error) {
	var pcg rand.PCG
	reseed(&pcg, seed, purpose, 0)
	rng := rand.New(&pcg)
	pair := draw(rng, pairs)
	a, b := pair/s.vocab, pair%s.vocab
	tokens := make([]int32, n)
	for i := range tokens {
		if i%markovChunk == 0 && ctx.Err() != nil {
			return nil, stopped(ctx, "markov")
		}
		tokens[i] = int32(a)
		a, b = b, draw(rng, s.after(a, b))
	}
	return tokens, nil
}

// draw picks an index with the probabilities p.
func draw(rng *rand.Rand, p []float64) int {
	u := rng.Float64()
	for i, x := range p {
		if u -= x; u < 0 {
			return i
		}
	}
	// Rounding left u just above the sum of p.
	for i := len(p) - 1; ; i-- {
		if p[i] > 0 {
			return i
		}
	}
}

// Package eval trains small models on N workers with each of several compression methods, and says what that cost and what it saved.
package eval

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/eval/dataset"
	"github.com/gradpress/gradpress/eval/model"
)

// Settings are what a task is trained with.
type Settings struct {
	Workers     int
	Batch       int // examples a worker and step
	Steps       int
	LR          float64 // it falls to zero along a cosine
	Rise        float64 // share of the steps over which it first rises to LR
	Momentum    float64
	WeightDecay float64
	Seed        uint64
	Delay       int     // steps that a mean may be late (delayed gradient averaging); 0 waits for it
	Uncorrected bool    // late means are applied as they are
	FedAvg      int     // local steps between two averages of the weights, instead of averaging gradients; 0 is off
	ClipNorm    float64 // of the whole gradient of a rank; 0 is off
	Trust       bool    // do not look for gradients that are not finite
	Augment     bool    // crop and mirror training images, where the data allows it
}

// Task is a model and the data it is trained on.
type Task struct {
	Name     string
	Metric   string // "accuracy", a fraction of 1, or "perplexity"
	Lower    bool   // the metric is better when lower
	Defaults Settings
	// Prefer are method settings that suit the task; what the user writes wins.
	Prefer []compress.Setting
	Load   func(context.Context, dataset.Options) (Problem, error)
}

// Problem is a task with its data at hand. It is shared by all workers and never written to.
type Problem interface {
	Model(seed uint64) (model.Model, error)
	// Feed deals out the training batches of one worker.
	Feed(rank int, s Settings) (Feed, error)
	// Score evaluates a worker's share of the held-out data: sum of losses in nats, correct predictions, predictions.
	Score(m model.Model, rank, size int) (loss float64, correct, count int, err error)
	// StepsPerEpoch is how many steps of total examples see the training data once.
	StepsPerEpoch(total int) int
	// Final turns sums over all workers into the task's metric.
	Final(loss float64, correct, count int) float64
	// Floor is the best metric that any model can reach, NaN where it is not known.
	Floor() float64
}

// Feed hands out batches, which are valid until the next call. reset says that state carried between batches must be forgotten.
type Feed interface {
	Batch(step int) (b model.Batch, reset bool)
}

// TaskNames describes the tasks there are.
const TaskNames = "resnetD-glyphs, resnetD-cifar10 (D = 6n+2: 8, 14, 20, 32 ... 110), lstm-markov, lstm-shakespeare"

// FindTask returns the task of that name.
func FindTask(name string) (Task, error) {
	net, data, _ := strings.Cut(name, "-")
	if depth, err := strconv.Atoi(strings.TrimPrefix(net, "resnet")); err == nil && strings.HasPrefix(net, "resnet") && depth >= 8 && depth <= 1202 && depth%6 == 2 {
		switch data {
		case "glyphs":
			return imageTask(name, depth, dataset.Glyphs, Settings{Batch: 4, Steps: 700, LR: 0.1, Momentum: 0.9, WeightDecay: 1e-4}), nil
		case "cifar10":
			return imageTask(name, depth, dataset.CIFAR10, Settings{Batch: 32, Steps: 1500, LR: 0.1, Momentum: 0.9, WeightDecay: 1e-4}), nil
		}
	}
	if net == "lstm" {
		switch data {
		case "markov":
			return textTask(name, dataset.Markov, model.LSTMConfig{Embed: 32, Hidden: 96, Layers: 1}, 32,
				Settings{Batch: 4, Steps: 600, LR: 2, Rise: 0.05, Momentum: 0.9}), nil
		case "shakespeare":
			return textTask(name, dataset.Shakespeare, model.LSTMConfig{Embed: 64, Hidden: 256, Layers: 2}, 64,
				Settings{Batch: 4, Steps: 1000, LR: 2, Rise: 0.05, Momentum: 0.9}), nil
		}
	}
	return Task{}, fmt.Errorf("no task %q; there are %s", name, TaskNames)
}

func imageTask(name string, depth int, load func(context.Context, dataset.Options) (*dataset.Images, error), s Settings) Task {
	return Task{Name: name, Metric: "accuracy", Defaults: s, Load: func(ctx context.Context, o dataset.Options) (Problem, error) {
		d, err := load(ctx, o)
		return &images{d, depth}, err
	}}
}

func textTask(name string, load func(context.Context, dataset.Options) (*dataset.Text, error), net model.LSTMConfig, length int, s Settings) Task {
	// Recurrent networks need their gradients clipped, and DGC clips before it accumulates (Lin et al. 2018, section 3.2).
	prefer := []compress.Setting{{Key: "clip", Value: "1"}}
	return Task{Name: name, Metric: "perplexity", Lower: true, Defaults: s, Prefer: prefer, Load: func(ctx context.Context, o dataset.Options) (Problem, error) {
		d, err := load(ctx, o)
		if err != nil {
			return nil, err
		}
		net.Vocab = d.Vocab
		return &text{d, net, length}, nil
	}}
}

// images is a residual network that classifies.
type images struct {
	data  *dataset.Images
	depth int
}

func (p *images) Model(seed uint64) (model.Model, error) {
	return model.NewResNet(p.depth, p.data.Classes, p.data.C, p.data.H, seed)
}

func (p *images) StepsPerEpoch(total int) int { return (p.data.Train.Len() + total - 1) / total }

func (p *images) Final(_ float64, correct, count int) float64 {
	return float64(correct) / float64(count)
}

func (p *images) Floor() float64 { return math.NaN() }

type imageFeed struct {
	p       *images
	sampler *dataset.Sampler
	source  rand.PCG
	rng     *rand.Rand
	augment bool
	seed    uint64 // of the augmentation, this worker's own
	b       model.Batch
}

func (p *images) Feed(rank int, s Settings) (Feed, error) {
	sampler, err := dataset.NewSampler(p.data.Train.Len(), s.Batch, rank, s.Workers, s.Seed)
	if err != nil {
		return nil, err
	}
	f := &imageFeed{p: p, sampler: sampler, augment: s.Augment, seed: s.Seed<<16 + uint64(rank), b: p.batch(s.Batch)}
	f.rng = rand.New(&f.source)
	return f, nil
}

func (p *images) batch(n int) model.Batch {
	return model.Batch{Size: n, X: make([]float32, n*p.data.C*p.data.H*p.data.W), Labels: make([]int32, n)}
}

func (f *imageFeed) Batch(step int) (model.Batch, bool) {
	var rng *rand.Rand
	if f.augment {
		f.source.Seed(f.seed, uint64(step)) // so that a resumed run sees the same crops
		rng = f.rng
	}
	f.p.data.Fill(f.b.X, f.b.Labels, f.p.data.Train, f.sampler.Batch(step), rng)
	return f.b, false
}

func (p *images) Score(m model.Model, rank, size int) (loss float64, correct, count int, err error) {
	const batch = 50
	b := p.batch(batch)
	var idx []int32
	n := p.data.Test.Len()
	lo, hi := rank*n/size, (rank+1)*n/size
	for i := lo; i < hi; i += len(idx) {
		idx = idx[:0]
		for j := i; j < min(i+batch, hi); j++ {
			idx = append(idx, int32(j))
		}
		part := model.Batch{Size: len(idx), X: b.X[:len(idx)*len(b.X)/batch], Labels: b.Labels[:len(idx)]}
		p.data.Fill(part.X, part.Labels, p.data.Test, idx, nil)
		l, c, k := m.Eval(part)
		loss, correct, count = loss+l, correct+c, count+k
	}
	return loss, correct, count, nil
}

// text is a recurrent network that predicts the next token.
type text struct {
	data   *dataset.Text
	net    model.LSTMConfig
	length int // tokens a stream and step, the reach of backpropagation through time
}

func (p *text) Model(seed uint64) (model.Model, error) { return model.NewLSTM(p.net, seed) }

func (p *text) StepsPerEpoch(total int) int {
	return max(1, len(p.data.Train)/(total*p.length))
}

func (p *text) Final(loss float64, _, count int) float64 { return math.Exp(loss / float64(count)) }

func (p *text) Floor() float64 { return math.Exp(p.data.Floor) }

type textFeed struct {
	streams *dataset.Streams
	b       model.Batch
}

func (p *text) feed(tokens []int32, batch, rank, size int) (*textFeed, error) {
	streams, err := dataset.NewStreams(tokens, batch, p.length, rank, size)
	if err != nil {
		return nil, err
	}
	n := batch * p.length
	return &textFeed{streams, model.Batch{Size: batch, Tokens: make([]int32, n), Labels: make([]int32, n)}}, nil
}

func (p *text) Feed(rank int, s Settings) (Feed, error) {
	return p.feed(p.data.Train, s.Batch, rank, s.Workers)
}

func (f *textFeed) Batch(step int) (model.Batch, bool) {
	reset := f.streams.Batch(step, f.b.Tokens, f.b.Labels)
	return f.b, reset
}

func (p *text) Score(m model.Model, rank, size int) (loss float64, correct, count int, err error) {
	f, err := p.feed(p.data.Valid, max(1, 8/size), rank, size)
	if err != nil {
		return 0, 0, 0, err
	}
	m.ResetEval()
	for step := range f.streams.Steps() {
		b, _ := f.Batch(step)
		l, c, k := m.Eval(b)
		loss, correct, count = loss+l, correct+c, count+k
	}
	return loss, correct, count, nil
}

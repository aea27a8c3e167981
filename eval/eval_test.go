package eval

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/compress/all"
	"github.com/gradpress/gradpress/eval/dataset"
	"github.com/gradpress/gradpress/eval/model"
	"github.com/gradpress/gradpress/transport/tcp"
)

func TestFindTask(t *testing.T) {
	for _, name := range []string{"resnet8-glyphs", "resnet20-cifar10", "resnet110-cifar10", "lstm-markov", "lstm-shakespeare"} {
		task, err := FindTask(name)
		require.NoError(t, err)
		require.Equal(t, name, task.Name)
		s := task.Defaults
		s.Workers = 4
		require.NoError(t, s.Check())
	}
	for _, name := range []string{"", "resnet8", "resnet9-glyphs", "resnet2-glyphs", "resnet-8-glyphs", "resnet8-markov", "lstm-glyphs", "lstm", "vgg-cifar10", "resnet08-"} {
		_, err := FindTask(name)
		require.ErrorContains(t, err, TaskNames, name)
	}
}

func TestSettingsCheck(t *testing.T) {
	good := Settings{Workers: 1, Batch: 1, Steps: 1, LR: 0.1, Momentum: 0.9}
	require.NoError(t, good.Check())
	for want, change := range map[string]func(*Settings){
		"workers": func(s *Settings) { s.Workers = 0 }, "batch": func(s *Settings) { s.Batch = 0 }, "steps": func(s *Settings) { s.Steps = -1 },
		"learning rate": func(s *Settings) { s.LR = math.NaN() }, "momentum": func(s *Settings) { s.Momentum = 1 }, "decay": func(s *Settings) { s.WeightDecay = -1 },
	} {
		s := good
		change(&s)
		require.ErrorContains(t, s.Check(), want)
	}
}

// A method that owns the momentum and an optimizer that has it must move the weights alike, decay included.
func TestOwnedMomentumMovesWeightsAlike(t *testing.T) {
	const n, m, decay, lr = 50, 0.9, 1e-2, 0.1
	rng := rand.New(rand.NewPCG(1, 1))
	fresh := func() []*model.Param {
		p := &model.Param{Name: "w", Shape: []int{n}, W: make([]float32, n), G: make([]float32, n)}
		for i := range p.W {
			p.W[i] = float32(i) / n
		}
		return []*model.Param{p}
	}
	a, b := fresh(), fresh()
	plain, owned := newSGD(a, m, decay, compress.Momentum{}), newSGD(b, m, decay, compress.Momentum{M: m})
	u := make([]float32, n)
	for range 30 {
		for i := range n {
			g := float32(rng.NormFloat64())
			a[0].G[i] = g
			u[i] = m*u[i] + g // what the method does before or after the exchange
			b[0].G[i] = u[i]
		}
		plain.step(lr)
		owned.step(lr)
		require.Equal(t, make([]float32, n), a[0].G, "a step clears the gradient")
	}
	for i := range n {
		// Thirty steps of a few roundings each, of velocities below 1/(1-m) times the largest gradient.
		require.InDelta(t, a[0].W[i], b[0].W[i], 30*5*0x1p-24*10*4*lr*10)
	}
}

func TestRate(t *testing.T) {
	s := Settings{LR: 2, Steps: 100}
	require.InDelta(t, 2, s.rate(0), 1e-12)
	require.InDelta(t, 1, s.rate(50), 1e-12)
	require.Less(t, s.rate(99), 0.01)
	s.Rise = 0.1
	require.InDelta(t, 2./11, s.rate(0), 1e-3)
	require.Less(t, s.rate(4), s.rate(5))
	require.Equal(t, Settings{LR: 2, Steps: 100}.rate(10), s.rate(10))
}

func tiny(t testing.TB, task, method string, workers, steps int) Run {
	tk, err := FindTask(task)
	require.NoError(t, err)
	limit := 256
	if strings.HasPrefix(task, "lstm") {
		limit = 20000
	}
	p, err := tk.Load(context.Background(), dataset.Options{Seed: 1, TrainLimit: limit})
	require.NoError(t, err)
	if im, ok := p.(*images); ok {
		im.data.Test.X, im.data.Test.Y = im.data.Test.X[:40*3*32*32], im.data.Test.Y[:40]
	}
	m, err := all.Methods().Parse(method)
	require.NoError(t, err)
	s := tk.Defaults
	s.Workers, s.Steps, s.Batch, s.Seed = workers, steps, 2, 3
	return Run{Task: tk, Problem: p, Method: m, Settings: s, Timeout: 20 * time.Second}
}

func do(t testing.TB, r Run) *Record {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rec, err := r.Do(ctx)
	require.NoError(t, err)
	return rec
}

func TestRunRecords(t *testing.T) {
	for _, task := range []string{"resnet8-glyphs", "lstm-markov"} {
		dense := do(t, tiny(t, task, "dense", 3, 4))
		require.InDelta(t, 1, dense.PayloadRatio, 1e-9, task)
		require.InDelta(t, 1, *dense.WireRatio, 1e-9, "dense against dense, counted twice")
		require.InDelta(t, dense.DenseBytes, dense.Bytes, 1e-9)
		// The busiest rank of a ring sends 2(N-1)/N of the gradient, give or take a segment's rounding and headers.
		require.InDelta(t, float64(dense.Params)*4*4/3, dense.Bytes, 0.02*dense.Bytes)
		dgc := do(t, tiny(t, task, "dgc:warmup=2", 3, 4))
		require.Greater(t, dgc.PayloadRatio, 50.0)
		require.Greater(t, dgc.PayloadRatio, dgc.WholePayloadRatio, "warm-up sends more")
		require.Less(t, dgc.Bytes, dense.Bytes/30)
		require.InDelta(t, 8, dgc.StateBytes, 0.3, "u and v; dense tensors have u only")
		require.NotNil(t, dgc.Final)
		require.False(t, dgc.Diverged)
	}
	require.InDelta(t, 4, do(t, tiny(t, "lstm-markov", "topk", 2, 3)).StateBytes, 0.1)
}

func TestOneWorkerHasNoWire(t *testing.T) {
	rec := do(t, tiny(t, "lstm-markov", "dgc", 1, 3))
	require.Nil(t, rec.WireRatio)
	require.Greater(t, rec.PayloadRatio, 50.0)
	_, err := json.Marshal(rec)
	require.NoError(t, err)
}

// A run is a function of its settings; over TCP it is the same one.
func TestRunsRepeatAlsoOverTCP(t *testing.T) {
	for _, task := range []string{"resnet8-glyphs", "lstm-markov"} {
		want := do(t, tiny(t, task, "dgc:ratio=0.01", 3, 5))
		again := do(t, tiny(t, task, "dgc:ratio=0.01", 3, 5))
		require.Equal(t, *want.HeldOutLoss, *again.HeldOutLoss)
		over := overTCP(t, tiny(t, task, "dgc:ratio=0.01", 3, 5))
		require.Equal(t, *want.HeldOutLoss, *over.HeldOutLoss)
		require.Equal(t, *want.Final, *over.Final)
		require.Equal(t, want.Bytes, over.Bytes, "both transports count alike")
		require.Equal(t, want.PayloadBytes, over.PayloadBytes)
	}
}

func overTCP(t *testing.T, r Run) *Record {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n := r.Settings.Workers
	recs, errs := make([]*Record, n), make([]error, n)
	var wg sync.WaitGroup
	for rank := range n {
		wg.Go(func() {
			cfg := tcp.Config{Rank: rank, Size: n, Master: l.Addr().String(), Meshes: 2}
			if rank == 0 {
				cfg.Listener = l.(*net.TCPListener)
			}
			meshes, err := tcp.Dial(ctx, cfg)
			if err != nil {
				errs[rank] = err
				return
			}
			run := r
			run.Seats = []Seat{NewSeat(meshes[0], meshes[1])}
			recs[rank], errs[rank] = run.Do(ctx)
			run.Seats[0].Data.Close()
			run.Seats[0].Control.Close()
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	for _, rec := range recs[1:] {
		require.Nil(t, rec, "rank 0 alone reports")
	}
	return recs[0]
}

// broken is a problem whose training data ends on one rank.
type broken struct{ Problem }

type brokenFeed struct{ Feed }

func (b broken) Feed(rank int, s Settings) (Feed, error) {
	f, err := b.Problem.Feed(rank, s)
	if rank == 1 {
		return brokenFeed{f}, err
	}
	return f, err
}

func (f brokenFeed) Batch(step int) (model.Batch, bool) {
	b, reset := f.Feed.Batch(step)
	if step == 2 {
		b.Labels = nil
	}
	return b, reset
}

func TestOneWorkerFailsAllEnd(t *testing.T) {
	r := tiny(t, "lstm-markov", "dgc", 4, 50)
	r.Problem = broken{r.Problem}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	start := time.Now()
	_, err := r.Do(ctx)
	require.ErrorContains(t, err, "step 2")
	require.ErrorContains(t, err, "labels")
	require.Less(t, time.Since(start), 15*time.Second, "nobody may wait for the dead rank until the timeout")
}

func TestDivergenceIsSeen(t *testing.T) {
	r := tiny(t, "lstm-markov", "dense", 2, 6)
	r.Settings.LR = 1e30
	rec := do(t, r)
	require.True(t, rec.Diverged)
	b, err := json.Marshal(rec)
	require.NoError(t, err, "NaN must not reach JSON")
	require.Contains(t, string(b), `"diverged":true`)
}

// Learning is the point: a few hundred steps must come far below a uniform guess, with each method.
func TestMethodsLearn(t *testing.T) {
	for _, method := range []string{"dense", "topk:ratio=0.02", "dgc:ratio=0.01,warmup=40"} {
		r := tiny(t, "lstm-markov", method, 2, 200)
		r.Settings.Batch = 4
		rec := do(t, r)
		require.Less(t, *rec.Final, 17.0, "%s: 32 symbols", method)
	}
}

// stopAfter is a run that ends with an error once step n is done.
func stopAfter(r Run, n int) Run {
	r.Problem = stopping{r.Problem, n}
	return r
}

type stopping struct {
	Problem
	n int
}

type stoppingFeed struct {
	Feed
	n int
}

func (s stopping) Feed(rank int, set Settings) (Feed, error) {
	f, err := s.Problem.Feed(rank, set)
	return stoppingFeed{f, s.n}, err
}

func (f stoppingFeed) Batch(step int) (model.Batch, bool) {
	b, reset := f.Feed.Batch(step)
	if step >= f.n {
		b.Labels = nil
	}
	return b, reset
}

// A run that is stopped anywhere and resumed ends with the bits of one that never stopped, and with its counts.
func TestResumeIsBitEqual(t *testing.T) {
	for _, c := range []struct {
		task, method string
		delay        int
	}{
		{"resnet8-glyphs", "dense", 0}, {"lstm-markov", "dgc:ratio=0.01,warmup=6", 0},
		{"lstm-markov", "topk:ratio=0.01,values=int8,small=0.1,exchange=twophase", 0}, {"resnet8-glyphs", "powersgd:begin=4", 0}, {"resnet8-glyphs", "topk:ratio=0.05", 3},
	} {
		const steps = 12
		run := func() Run {
			r := tiny(t, c.task, c.method, 2, steps)
			r.Settings.Delay = c.delay
			return r
		}
		want := do(t, run())
		for _, stop := range []int{2, 5, 11} {
			r := run()
			r.Checkpoints = Checkpoints{Dir: t.TempDir(), Every: 2, Resume: true}
			_, err := stopAfter(r, stop).Do(context.Background())
			require.ErrorContains(t, err, "labels")
			got := do(t, r)
			require.Equal(t, *want.HeldOutLoss, *got.HeldOutLoss, "%s with %s, stopped after %d", c.task, c.method, stop)
			require.Equal(t, *want.TrainLoss, *got.TrainLoss)
			require.Equal(t, want.Bytes, got.Bytes)
			require.Equal(t, want.PayloadBytes, got.PayloadBytes)
			require.Equal(t, want.WholePayloadRatio, got.WholePayloadRatio)
			again := do(t, r) // from the last checkpoint there is nothing left to train
			require.Equal(t, *want.HeldOutLoss, *again.HeldOutLoss)
		}
	}
}

func TestResumeRefusesAnotherRun(t *testing.T) {
	dir := t.TempDir()
	r := tiny(t, "lstm-markov", "dgc:ratio=0.01", 2, 4)
	r.Checkpoints = Checkpoints{Dir: dir, Every: 2, Resume: true}
	do(t, r)
	for want, change := range map[string]func(r *Run){
		"settings":          func(r *Run) { r.Settings.LR = 7 },
		"number of workers": func(r *Run) { r.Settings.Workers = 1 },
	} {
		other := r
		change(&other)
		_, err := other.Do(context.Background())
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, dir, "the file is named")
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 4, "two checkpoints of each of two ranks")
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
		b[len(b)/2] ^= 1
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name()), b, 0o666))
	}
	_, err = r.Do(context.Background())
	require.ErrorContains(t, err, "checksum")
}

package eval

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/eval/model"
	"github.com/gradpress/gradpress/hooks"
	"github.com/gradpress/gradpress/kernels"
)

// Seat is a worker's place among the ranks: a group for gradients and one for small agreements.
type Seat struct{ Data, Control collective.Group }

// sent is what this rank has put on the wire.
func (s Seat) sent() int64 { return s.Data.Traffic().SentBytes + s.Control.Traffic().SentBytes }

// tally is what a worker has measured, and sends to the others as it is.
type tally struct {
	// After the method's own warm-up.
	Steps, Wire, Payload int64
	// Over the whole run.
	AllSteps, AllWire, AllPayload int64
	Dense                         int64 // bytes of gradient a step, 4 a parameter
	Buckets                       int64
	DenseWire                     int64 // bytes on the wire for a step of dense ring all-reduce
	StateBytes, NonFinite         int64
	Backward, Wait                time.Duration
	Compress, Exchange, Decode    time.Duration
	// Of the held-out data.
	Loss           float64
	Correct, Count int64
	TrainLoss      float64 // mean over the last tenth of the steps
	Weights        uint64  // a hash of the replica
}

// worker trains one replica. It returns every rank's tally in rank order.
func worker(ctx context.Context, seat Seat, r Run, bucketBytes int, watch *monitor, progress func(step int, loss float64)) (all []tally, err error) {
	defer func() {
		if err != nil { // take the others down too, whatever went wrong
			seat.Data.Abort(err)
			seat.Control.Abort(err)
		}
	}()
	w, err := newReplica(ctx, seat, r, bucketBytes, watch)
	if err != nil {
		return nil, err
	}
	defer w.hook.Close()
	files := keeper{Checkpoints: r.Checkpoints, header: w.header(r)}
	first, err := files.resume(ctx, seat, w)
	if err != nil {
		return nil, err
	}
	w.sent, w.stats = w.seat.sent(), w.engine.Stats()
	for step := first; step < r.Settings.Steps; step++ {
		loss, err := w.step(ctx, step)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", step, err)
		}
		if progress != nil {
			progress(step+1, loss)
		}
		if err := files.keep(step+1, r.Settings.Steps, w); err != nil {
			return nil, err
		}
	}
	if err := w.settle(ctx); err != nil {
		return nil, err
	}
	w.t.StateBytes, w.t.Weights = int64(w.stateBytes()), hash(w.net.Params())
	if err := shareBuffers(ctx, seat, w.net); err != nil {
		return nil, err
	}
	loss, correct, count, err := r.Problem.Score(w.net, seat.Data.Rank(), r.Settings.Workers)
	if err != nil {
		return nil, err
	}
	w.t.Loss, w.t.Correct, w.t.Count = loss, int64(correct), int64(count)
	return gather(ctx, seat, w.t)
}

// replica is a model under training on one rank, and what it has cost so far.
type replica struct {
	seat    Seat
	s       Settings
	warmup  int
	net     model.Model
	feed    Feed
	engine  *hooks.Engine
	late    *hooks.Delayed // around engine, nil without a delay
	hook    hooks.Inner    // the outer one
	reducer *ddp.Reducer
	opt     *sgd
	t       tally
	sent    int64       // what t knows of
	stats   hooks.Stats // likewise
}

func newReplica(ctx context.Context, seat Seat, r Run, bucketBytes int, watch *monitor) (*replica, error) {
	w := &replica{seat: seat, s: r.Settings, warmup: min(r.Method.Warmup, r.Settings.Steps)}
	var err error
	if w.net, err = r.Problem.Model(w.s.Seed); err != nil {
		return nil, err
	}
	if w.feed, err = r.Problem.Feed(seat.Data.Rank(), w.s); err != nil {
		return nil, err
	}
	cfg := hooks.Config{Dev: kernels.CPU(), Data: seat.Data, Control: seat.Control, Seed: w.s.Seed, ClipNorm: w.s.ClipNorm, Trust: w.s.Trust}
	if w.t.DenseWire, err = denseWire(ctx, cfg, seat, w.net, bucketBytes); err != nil {
		return nil, err
	}
	cfg.Recorder = watch.recorder()
	if w.engine, err = hooks.Compressed(ctx, cfg, r.Method); err != nil {
		return nil, err
	}
	w.hook = w.engine
	if w.s.Delay > 0 {
		w.late, err = hooks.NewDelayed(ctx, w.engine, hooks.Delay{Dev: kernels.CPU(), Steps: w.s.Delay, Uncorrected: w.s.Uncorrected})
		if err != nil {
			return nil, err
		}
		w.hook = w.late
	}
	if w.reducer, err = attach(w.net, w.hook, bucketBytes); err != nil {
		w.hook.Close()
		return nil, err
	}
	w.t.Buckets = int64(len(w.reducer.Buckets()))
	for _, p := range w.net.Params() {
		w.t.Dense += int64(4 * len(p.W))
	}
	w.opt = newSGD(w.net.Params(), w.s.Momentum, w.s.WeightDecay, w.engine.OwnsMomentum())
	return w, nil
}

// step trains on one batch and counts.
func (w *replica) step(ctx context.Context, step int) (loss float64, err error) {
	b, reset := w.feed.Batch(step)
	if reset {
		w.net.Reset()
	}
	t0 := time.Now()
	ready := w.reducer.Ready
	if w.s.FedAvg > 0 {
		ready = nil
	}
	rate := w.s.rate(step)
	if w.late != nil {
		w.late.SetRate(rate)
	}
	if loss, err = w.net.Step(b, ready); err != nil {
		return 0, err
	}
	t1 := time.Now()
	if w.s.FedAvg > 0 {
		w.opt.step(rate)
		if (step+1)%w.s.FedAvg == 0 || step+1 == w.s.Steps {
			err = w.averageWeights(ctx)
		}
	} else if err = w.reducer.Wait(ctx); err == nil {
		w.opt.step(rate)
	}
	if err != nil {
		return 0, err
	}
	t2 := time.Now()

	t := &w.t
	t.AllSteps++
	if step >= w.warmup || w.warmup == w.s.Steps {
		t.Steps++
	}
	w.count()
	t.Backward, t.Wait = t.Backward+t1.Sub(t0), t.Wait+t2.Sub(t1)
	if tail := max(1, w.s.Steps/10); step >= w.s.Steps-tail {
		t.TrainLoss += loss / float64(tail)
	}
	return loss, nil
}

// count adds what has been exchanged since it was last called to the tally. An exchange that is late counts when it is over.
func (w *replica) count() {
	sent, stats := w.seat.sent(), w.engine.Stats()
	t, wire, did := &w.t, sent-w.sent, stats.Sub(w.stats)
	w.sent, w.stats = sent, stats
	t.AllWire, t.AllPayload = t.AllWire+wire, t.AllPayload+did.PayloadBytes
	if t.Steps > 0 {
		t.Wire, t.Payload = t.Wire+wire, t.Payload+did.PayloadBytes
	}
	t.NonFinite += did.NonFinite
	t.Compress, t.Exchange, t.Decode = t.Compress+did.Compress, t.Exchange+did.Exchange, t.Decode+did.Decode
}

// stateBytes is what the method remembers between steps.
func (w *replica) stateBytes() int {
	n := w.engine.StateBytes()
	if w.late != nil {
		n += w.late.StateBytes()
	}
	return n
}

// attach puts the model's gradients into the buckets of a reducer.
func attach(net model.Model, h ddp.Hook, bucketBytes int) (*ddp.Reducer, error) {
	params := net.Params()
	list := make([]ddp.Param, len(params))
	for i, p := range params {
		list[i] = ddp.Param{Name: p.Name, Shape: p.Shape}
	}
	r, err := ddp.New(list, h, ddp.Config{Dev: kernels.CPU(), BucketBytes: bucketBytes})
	if err != nil {
		return nil, err
	}
	for i, p := range params {
		p.G, _ = kernels.Host(r.Grad(i))
	}
	return r, nil
}

// denseWire counts what a step of plain ring all-reduce of the same buckets puts on the wire from this rank, by doing one.
func denseWire(ctx context.Context, cfg hooks.Config, seat Seat, net model.Model, bucketBytes int) (int64, error) {
	cfg.ClipNorm = 0
	engine, err := hooks.AllReduce(ctx, cfg)
	if err != nil {
		return 0, err
	}
	defer engine.Close()
	r, err := attach(net, engine, bucketBytes)
	if err != nil {
		return 0, err
	}
	before := seat.sent()
	for i := len(net.Params()) - 1; i >= 0; i-- {
		if err := r.Ready(i); err != nil {
			return 0, err
		}
	}
	if err := r.Wait(ctx); err != nil {
		return 0, err
	}
	return seat.sent() - before, nil
}

// shareBuffers gives every rank rank 0's batch-norm statistics, so that all evaluate the same model.
func shareBuffers(ctx context.Context, seat Seat, net model.Model) error {
	for _, b := range net.Buffers() {
		raw := floatBytes(b.X)
		if err := seat.Data.Broadcast(ctx, raw, 0); err != nil {
			return err
		}
		readFloats(b.X, raw)
	}
	return nil
}

// gather exchanges tallies.
func gather(ctx context.Context, seat Seat, mine tally) ([]tally, error) {
	raw, err := binary.Append(nil, binary.LittleEndian, mine)
	if err != nil {
		return nil, err
	}
	msgs, err := seat.Data.AllGather(ctx, raw)
	if err != nil {
		return nil, err
	}
	all := make([]tally, len(msgs))
	for r, b := range msgs {
		if n, err := binary.Decode(b, binary.LittleEndian, &all[r]); err != nil || n != len(b) {
			return nil, fmt.Errorf("eval: rank %d reports %d bytes of results, want %d: do all ranks run the same program?", r, len(b), len(raw))
		}
		if all[r].Weights != all[0].Weights {
			return nil, fmt.Errorf("eval: rank %d ends with other weights than rank 0: the exchange is broken", r)
		}
	}
	return all, nil
}

// hash is FNV-1a over the bits of all weights.
func hash(params []*model.Param) uint64 {
	h := uint64(14695981039346656037)
	for _, p := range params {
		for _, w := range p.W {
			h = (h ^ uint64(math.Float32bits(w))) * 1099511628211
		}
	}
	return h
}

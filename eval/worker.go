package eval

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/compress"
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
func worker(ctx context.Context, seat Seat, p Problem, m compress.Method, s Settings, bucketBytes int, progress func(step int, loss float64)) (all []tally, err error) {
	defer func() {
		if err != nil { // take the others down too, whatever went wrong
			seat.Data.Abort(err)
			seat.Control.Abort(err)
		}
	}()
	rank := seat.Data.Rank()
	net, err := p.Model(s.Seed)
	if err != nil {
		return nil, err
	}
	feed, err := p.Feed(rank, s)
	if err != nil {
		return nil, err
	}
	cfg := hooks.Config{Dev: kernels.CPU(), Data: seat.Data, Control: seat.Control, Seed: s.Seed}
	t := tally{}
	if t.DenseWire, err = denseWire(ctx, cfg, seat, net, bucketBytes); err != nil {
		return nil, err
	}
	engine, err := hooks.Compressed(ctx, cfg, m)
	if err != nil {
		return nil, err
	}
	defer engine.Close()
	reducer, err := attach(net, engine, bucketBytes)
	if err != nil {
		return nil, err
	}
	opt := newSGD(net.Params(), s.Momentum, s.WeightDecay, engine.OwnsMomentum())

	wire0, stats0 := seat.sent(), engine.Stats()
	wire, stats, from := wire0, stats0, 0
	tail, lossTail := max(1, s.Steps/10), 0.0
	for step := range s.Steps {
		if step == m.Warmup && step > 0 {
			wire, stats, from = seat.sent(), engine.Stats(), step
		}
		b, reset := feed.Batch(step)
		if reset {
			net.Reset()
		}
		t0 := time.Now()
		loss, err := net.Step(b, reducer.Ready)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", step, err)
		}
		t1 := time.Now()
		if err := reducer.Wait(ctx); err != nil {
			return nil, fmt.Errorf("step %d: %w", step, err)
		}
		t.Backward += t1.Sub(t0)
		t.Wait += time.Since(t1)
		opt.step(s.rate(step))
		if step >= s.Steps-tail {
			lossTail += loss / float64(tail)
		}
		if progress != nil {
			progress(step+1, loss)
		}
	}
	end, last := seat.sent(), engine.Stats()
	late, whole := last.Sub(stats), last.Sub(stats0)
	t.Steps, t.Wire, t.Payload = int64(s.Steps-from), end-wire, late.PayloadBytes
	t.AllSteps, t.AllWire, t.AllPayload = int64(s.Steps), end-wire0, whole.PayloadBytes
	t.Dense = whole.DenseBytes / int64(s.Steps)
	t.StateBytes, t.NonFinite = int64(engine.StateBytes()), whole.NonFinite
	t.Compress, t.Exchange, t.Decode = whole.Compress, whole.Exchange, whole.Decode
	t.TrainLoss = lossTail

	t.Weights = hash(net.Params())

	if err := shareBuffers(ctx, seat, net); err != nil {
		return nil, err
	}
	loss, correct, count, err := p.Score(net, rank, s.Workers)
	if err != nil {
		return nil, err
	}
	t.Loss, t.Correct, t.Count = loss, int64(correct), int64(count)
	return gather(ctx, seat, t)
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
		raw := make([]byte, 0, 4*len(b.X))
		for _, x := range b.X {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
		}
		if err := seat.Data.Broadcast(ctx, raw, 0); err != nil {
			return err
		}
		for i := range b.X {
			b.X[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
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

package eval

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/eval/model/blas"
	"github.com/gradpress/gradpress/transport"
	"github.com/gradpress/gradpress/transport/inproc"
)

// Run is one task trained with one method.
type Run struct {
	Task        Task
	Problem     Problem
	Method      compress.Method
	Settings    Settings
	BucketBytes int           // 0: the smaller of 25 MiB and an eighth of the model
	Timeout     time.Duration // how long a rank may be waited for
	// Seats are this process's places among ranks that meet over a network; nil makes Settings.Workers of them in this process.
	Seats       []Seat
	Checkpoints Checkpoints
	// Trace, if set, is written to when the run has ended: the timeline of the workers here, in Chrome's format, of TraceSteps steps after
	// the method's warm-up.
	Trace io.Writer
	// Overlap asks for how much of the exchange was hidden behind the backward pass.
	Overlap bool
	// Progress, if set, is called after each step of the first worker here.
	Progress func(step int, loss float64)
}

// Record is the outcome of a Run, as it is written and printed. Ratios and bytes are after the method's warm-up (Warmup steps), the Whole
// ones over all steps. Fields that do not apply are null.
type Record struct {
	Task    string `json:"task"`
	Method  string `json:"method"`
	Workers int    `json:"workers"`
	Steps   int    `json:"steps"`
	Warmup  int    `json:"warmup_steps"`
	Seed    uint64 `json:"seed"`

	Batch       int     `json:"batch"`
	LR          float64 `json:"lr"`
	Momentum    float64 `json:"momentum"`
	WeightDecay float64 `json:"weight_decay"`
	Params      int64   `json:"parameters"`
	BucketBytes int     `json:"bucket_bytes"`
	BLAS        string  `json:"blas"`

	Metric      string   `json:"metric"`
	Final       *float64 `json:"final_metric"`
	Dense       *float64 `json:"dense_metric"`
	Floor       *float64 `json:"best_possible_metric"`
	Diverged    bool     `json:"diverged"`
	TrainLoss   *float64 `json:"train_loss"`
	HeldOutLoss *float64 `json:"held_out_loss"`

	// PayloadRatio is 4 bytes a parameter over the bytes that a rank offers a step; WireRatio compares what the busiest rank sends with
	// dense ring all-reduce, transport headers included.
	PayloadRatio      float64  `json:"payload_ratio"`
	WireRatio         *float64 `json:"wire_ratio"`
	WholePayloadRatio float64  `json:"payload_ratio_whole_run"`
	WholeWireRatio    *float64 `json:"wire_ratio_whole_run"`
	PayloadBytes      float64  `json:"payload_bytes_per_step"`
	Bytes             float64  `json:"bytes_per_step"`
	DenseBytes        float64  `json:"dense_bytes_per_step"`
	NonFinite         int64    `json:"nonfinite_buckets"`
	StateBytes        float64  `json:"state_bytes_per_parameter"`

	Seconds         float64 `json:"seconds"`
	BackwardSeconds float64 `json:"seconds_backward"`
	CompressSeconds float64 `json:"seconds_compress"`
	ExchangeSeconds float64 `json:"seconds_exchange"`
	DecodeSeconds   float64 `json:"seconds_decode"`
	WaitSeconds     float64 `json:"seconds_wait"`
	// Overlap is the share of the shorter of backward and exchange in which both went on at once, after warm-up, on rank 0.
	Overlap *float64 `json:"overlap"`
	Buckets int64    `json:"buckets"`
}

// Do trains and evaluates. In a process that holds rank 0 it returns a Record, elsewhere nil.
func (r Run) Do(ctx context.Context) (*Record, error) {
	start := time.Now()
	net, err := r.Problem.Model(r.Settings.Seed)
	if err != nil {
		return nil, err
	}
	params := 0
	for _, p := range net.Params() {
		params += len(p.W)
	}
	bucket := r.BucketBytes
	if bucket == 0 {
		bucket = min(25<<20, max(4*params/8, 1))
	}
	seats := r.Seats
	if seats == nil {
		seats = local(r.Settings.Workers, r.Timeout)
		defer func() {
			for _, s := range seats {
				s.Data.Close()
				s.Control.Close()
			}
		}()
	}
	watch := newMonitor(r)
	results := make([][]tally, len(seats))
	g, ctx := errgroup.WithContext(ctx)
	for i, seat := range seats {
		progress := r.Progress
		if i > 0 {
			progress = nil
		}
		g.Go(func() (err error) {
			results[i], err = worker(ctx, seat, r, bucket, watch, progress)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := watch.write(r.Trace); err != nil {
		return nil, err
	}
	if seats[0].Data.Rank() != 0 {
		return nil, nil
	}
	rec := r.record(results[0], int64(params))
	rec.BucketBytes = bucket
	rec.Overlap = watch.overlap(seats[0].Data.Rank())
	rec.Seconds = time.Since(start).Seconds()
	return rec, nil
}

// local makes the seats of n workers in this process.
func local(n int, timeout time.Duration) []Seat {
	data, control := inproc.NewWith(n, inproc.Options{Timeout: timeout}), inproc.NewWith(n, inproc.Options{Timeout: timeout})
	seats := make([]Seat, n)
	for r := range seats {
		seats[r] = NewSeat(data[r], control[r])
	}
	return seats
}

// NewSeat is a place on two meshes of the same ranks.
func NewSeat(data, control transport.Mesh) Seat {
	return Seat{collective.New(data), collective.New(control)}
}

func (r Run) record(all []tally, params int64) *Record {
	s := r.Settings
	rec := &Record{Task: r.Task.Name, Method: r.name(), Workers: s.Workers, Steps: s.Steps, Warmup: min(r.Method.Warmup, s.Steps), Seed: s.Seed,
		Batch: s.Batch, LR: s.LR, Momentum: s.Momentum, WeightDecay: s.WeightDecay, Params: params, BLAS: blas.Name(),
		Metric: r.Task.Metric, Floor: finite(r.Problem.Floor())}
	var loss, train float64
	var correct, count int64
	var late, whole, denseWire, lateWire, wholeWire float64
	for _, t := range all {
		loss, correct, count = loss+t.Loss, correct+t.Correct, count+t.Count
		train += t.TrainLoss / float64(len(all))
		late = max(late, float64(t.Payload)/float64(t.Steps))
		whole = max(whole, float64(t.AllPayload)/float64(t.AllSteps))
		lateWire = max(lateWire, float64(t.Wire)/float64(t.Steps))
		wholeWire = max(wholeWire, float64(t.AllWire)/float64(t.AllSteps))
		denseWire = max(denseWire, float64(t.DenseWire))
		rec.NonFinite = max(rec.NonFinite, t.NonFinite)
		rec.StateBytes = max(rec.StateBytes, float64(t.StateBytes)/float64(params))
		n := float64(len(all))
		rec.BackwardSeconds += t.Backward.Seconds() / n
		rec.WaitSeconds += t.Wait.Seconds() / n
		rec.CompressSeconds += t.Compress.Seconds() / n
		rec.ExchangeSeconds += t.Exchange.Seconds() / n
		rec.DecodeSeconds += t.Decode.Seconds() / n
	}
	rec.Buckets = all[0].Buckets
	dense := float64(all[0].Dense)
	rec.PayloadRatio, rec.WholePayloadRatio = dense/late, dense/whole
	rec.WireRatio, rec.WholeWireRatio = finite(denseWire/lateWire), finite(denseWire/wholeWire)
	rec.PayloadBytes, rec.Bytes, rec.DenseBytes = late, lateWire, denseWire
	rec.Final, rec.TrainLoss, rec.HeldOutLoss = finite(r.Problem.Final(loss, int(correct), int(count))), finite(train), finite(loss/float64(count))
	rec.Diverged = rec.Final == nil || rec.TrainLoss == nil || rec.HeldOutLoss == nil
	return rec
}

// finite is x, or nothing where JSON has no way to write it.
func finite(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

// Check refuses settings that cannot be trained with.
func (s Settings) Check() error {
	switch {
	case s.Workers < 1 || s.Workers > 1024:
		return fmt.Errorf("workers is %d, want 1 to 1024", s.Workers)
	case s.Batch < 1:
		return fmt.Errorf("batch is %d, want 1 or more examples a worker", s.Batch)
	case s.Steps < 1:
		return fmt.Errorf("steps is %d, want 1 or more", s.Steps)
	case !(s.LR > 0) || math.IsInf(s.LR, 0):
		return fmt.Errorf("learning rate is %v, want more than 0", s.LR)
	case !(s.Momentum >= 0 && s.Momentum < 1):
		return fmt.Errorf("momentum is %v, want [0, 1)", s.Momentum)
	case !(s.ClipNorm >= 0) || math.IsInf(s.ClipNorm, 0):
		return fmt.Errorf("clip norm is %v, want 0 (off) or more", s.ClipNorm)
	case s.Delay < 0:
		return fmt.Errorf("delay is %d steps, want 0 or more", s.Delay)
	case s.FedAvg < 0:
		return fmt.Errorf("fedavg is %d steps, want 0 (off) or more", s.FedAvg)
	case s.FedAvg > 0 && s.Delay > 0:
		return fmt.Errorf("fedavg and a delay exclude each other: one averages weights, the other gradients")
	case s.ClipNorm > 0 && (s.FedAvg > 0 || s.Delay > 0):
		return fmt.Errorf("clip norm clips what is exchanged: with fedavg that is weights, and with a delay the gradient has been applied already")
	case !(s.WeightDecay >= 0) || math.IsInf(s.WeightDecay, 0):
		return fmt.Errorf("weight decay is %v, want 0 or more", s.WeightDecay)
	}
	return nil
}

// Package hooks carries compressors' payloads between ranks: its Engine is a ddp.Hook that starts a bucket's compressors, exchanges
// what they offer round by round, and feeds back what comes. Nothing else looks at a payload's type.
package hooks

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/kernels"
)

// Config sets an Engine. Data and Control are two groups of the same ranks: a flag must not queue behind a bucket.
type Config struct {
	Dev           kernels.Device
	Data, Control collective.Group
	Seed          uint64 // equal on all ranks
	// Trust skips the check for non-finite gradients. Then an Inf or NaN stays in the residual for ever.
	Trust bool
	// ClipNorm, if set, scales a rank's whole gradient down to a norm of ClipNorm / sqrt(ranks) before it is accumulated (Lin et al. 2018,
	// section 3.2). No bucket can then leave before the last one is filled: clipping each tensor keeps the overlap.
	ClipNorm float64
	// Wire is how gradients travel that would travel as float32 sums: dense tensors, and the factors of low-rank methods.
	Wire kernels.DType
	// Recorder, if set, is told what happens. Residuals lets it know the largest residual too, at the price of a pass over them a step.
	Recorder  Recorder
	Residuals bool
}

// smallest is the size from which tensors are worth compressing: those below, and all of at most one dimension, are under 1 % of the
// bytes and do most of the damage.
const smallest = 256

// AllReduce averages gradients as they are.
func AllReduce(ctx context.Context, cfg Config) (*Engine, error) {
	return Compressed(ctx, cfg, compress.Dense(compress.Momentum{}))
}

// Compressed sends tensors through m, but small ones dense, or pooled where m says how.
func Compressed(ctx context.Context, cfg Config, m compress.Method) (*Engine, error) {
	return New(ctx, cfg, m.Momentum, bySize(m))
}

// bySize leaves small tensors dense, or pooled where m says how.
func bySize(m compress.Method) func(ddp.Param) Choice {
	small := Choice{Method: compress.Dense(m.Momentum)}
	if m.Small != nil {
		small = Choice{Method: m, Pool: "small"}
		small.Method.New = m.Small
	}
	whole := Choice{Method: m}
	if m.Across {
		whole.Pool = "compressed"
	}
	return func(p ddp.Param) Choice {
		if len(p.Shape) <= 1 || p.Len() < smallest {
			return small
		}
		return whole
	}
}

// Choice is how a parameter is served. Parameters of one Pool are served as one set, in one bucket; "" is none.
type Choice struct {
	Method compress.Method
	Pool   string
}

func (c Choice) class() ddp.Class {
	if c.Pool != "" {
		return ddp.Class{Name: "pool " + c.Pool, Together: true}
	}
	return ddp.Class{Name: c.Method.Text}
}

// New is an engine that serves each parameter as choose says. owned is the momentum that the methods apply, so that the optimizer must
// have none.
func New(ctx context.Context, cfg Config, owned compress.Momentum, choose func(ddp.Param) Choice) (*Engine, error) {
	if cfg.Data.Size() != cfg.Control.Size() || cfg.Data.Rank() != cfg.Control.Rank() {
		return nil, fmt.Errorf("hooks: data group has rank %d of %d, control group rank %d of %d",
			cfg.Data.Rank(), cfg.Data.Size(), cfg.Control.Rank(), cfg.Control.Size())
	}
	e := &Engine{ctx: ctx, cfg: cfg, owned: owned, choose: choose, fused: map[kernels.DType]kernels.Buf[float32]{}}
	var err error
	if e.front, err = cfg.Dev.NewStream(); err != nil {
		return nil, err
	}
	if e.back, err = cfg.Dev.NewStream(); err != nil {
		return nil, err
	}
	if cfg.Recorder != nil {
		e.watch = &watch{to: cfg.Recorder, rank: cfg.Data.Rank()}
	}
	var errs [2]error
	e.flag, errs[0] = kernels.NewBuf[uint32](cfg.Dev, 1)
	e.norm, errs[1] = kernels.NewBuf[float64](cfg.Dev, 1)
	return e, errors.Join(errs[:]...)
}

// narrowed makes the float32 sums of a compressor travel as another type.
type narrowed struct {
	compress.Compressor
	wire kernels.DType
}

func (c *narrowed) Start(ctx context.Context, s kernels.Stream, v kernels.Buf[float32]) (compress.Payload, error) {
	p, err := c.Compressor.Start(ctx, s, v)
	return c.narrow(p), err
}

func (c *narrowed) Next(ctx context.Context, s kernels.Stream, got compress.Received, out kernels.Buf[float32]) (compress.Payload, error) {
	p, err := c.Compressor.Next(ctx, s, got, out)
	return c.narrow(p), err
}

func (c *narrowed) narrow(p compress.Payload) compress.Payload {
	switch p := p.(type) {
	case *compress.Linear:
		if p.Wire == kernels.F32 {
			p.Wire = c.wire
		}
	case *compress.Many:
		for _, q := range p.Of {
			c.narrow(q)
		}
	}
	return p
}

// Engine is a ddp.Hook. Two goroutines share the work: one compresses bucket i+1 while the other has bucket i on the wire. The second
// runs all rounds of a bucket before any of the next, so that ranks never mismatch. After an error an Engine is dead.
type Engine struct {
	ctx    context.Context
	cfg    Config
	owned  compress.Momentum
	choose func(ddp.Param) Choice
	accept func([]ddp.Param) error // nil takes any

	front, back kernels.Stream
	flag        kernels.Buf[uint32]
	norm        kernels.Buf[float64]
	jobs        []*job // by bucket
	toStart     chan *job
	toExchange  chan *job
	running     sync.WaitGroup
	fused       map[kernels.DType]kernels.Buf[float32]
	stage       stage
	decoder     compress.Decoder
	watch       *watch // nil without a Recorder

	mu    sync.Mutex
	stats Stats
	err   error
}

// Stats counts what the engine has done so far on this rank.
type Stats struct {
	// PayloadBytes is what this rank offered: all rounds, frames, scales, dense tensors and flags. DenseBytes is 4 bytes a gradient.
	PayloadBytes, DenseBytes int64
	// NonFinite is how many buckets were exchanged dense because some rank's gradient was not finite.
	NonFinite int64
	// Compress is time in Start and encoding, Exchange in collectives (waiting for other ranks included), Decode in decoding and Next.
	Compress, Exchange, Decode time.Duration
}

// Sub is s - t, field by field.
func (s Stats) Sub(t Stats) Stats {
	return Stats{s.PayloadBytes - t.PayloadBytes, s.DenseBytes - t.DenseBytes, s.NonFinite - t.NonFinite,
		s.Compress - t.Compress, s.Exchange - t.Exchange, s.Decode - t.Decode}
}

// Stats is what has been counted so far.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

func (e *Engine) count(f func(s *Stats)) {
	e.mu.Lock()
	f(&e.stats)
	e.mu.Unlock()
}

// OwnsMomentum is the momentum that the engine applies; where it is not zero an optimizer with momentum would apply it twice.
func (e *Engine) OwnsMomentum() compress.Momentum { return e.owned }

// Plan makes a class of each method and each pool.
func (e *Engine) Plan(params []ddp.Param) ([]ddp.Class, error) {
	if e.accept != nil {
		if err := e.accept(params); err != nil {
			return nil, err
		}
	}
	classes := make([]ddp.Class, len(params))
	for i, p := range params {
		classes[i] = e.choose(p).class()
	}
	return classes, nil
}

// Bind makes the compressors for a layout. What they remembered under an earlier layout they get back by name.
func (e *Engine) Bind(params []ddp.Param, buckets []*ddp.Bucket) error {
	saved, err := e.Save()
	if err != nil {
		return err
	}
	rebound := e.jobs != nil
	e.stop()
	e.jobs = nil
	e.watch.bind(len(buckets))
	for _, b := range buckets {
		j := &job{b: b}
		for _, span := range b.Spans {
			set := compress.Set{Rank: e.cfg.Data.Rank(), Size: e.cfg.Data.Size(), Seed: e.cfg.Seed, Dev: e.cfg.Dev}
			for _, i := range span.Params {
				set.Parts = append(set.Parts, compress.NewPart(params[i].Name, params[i].Shape...))
			}
			m := e.choose(params[span.Params[0]]).Method
			c, err := m.New(set)
			if err != nil {
				return fmt.Errorf("hooks: %s: %w", m.Text, err)
			}
			if e.cfg.Wire != kernels.F32 {
				c = &narrowed{c, e.cfg.Wire}
			}
			j.spans = append(j.spans, served{set, c, b.Grad.Slice(span.Lo, span.Hi)})
			j.guarded = j.guarded || !m.Transparent && !e.cfg.Trust
		}
		j.payloads, j.got = make([]compress.Payload, len(j.spans)), make([]compress.Received, len(j.spans))
		e.jobs = append(e.jobs, j)
	}
	if rebound {
		if err := e.Restore(saved); err != nil {
			return err
		}
	}
	e.start()
	return nil
}

// Save copies what every compressor remembers, by parameter name. No exchange may be under way.
func (e *Engine) Save() (compress.Snapshot, error) {
	all := compress.Snapshot{}
	for _, j := range e.jobs {
		for _, sp := range j.spans {
			snap, err := compress.Save(e.ctx, e.back, sp.c)
			if err != nil {
				return nil, err
			}
			for name, x := range snap {
				all[name] = x
			}
		}
	}
	return all, nil
}

// StateBytes is the size of what every compressor remembers between steps.
func (e *Engine) StateBytes() int {
	n := 0
	for _, j := range e.jobs {
		for _, sp := range j.spans {
			for _, b := range sp.c.State() {
				n += b.Buf.Len()
			}
		}
	}
	return n
}

// Restore is the reverse of Save.
func (e *Engine) Restore(all compress.Snapshot) error {
	for _, j := range e.jobs {
		for _, sp := range j.spans {
			if err := compress.Restore(e.ctx, e.back, sp.c, all); err != nil {
				return err
			}
		}
	}
	return nil
}

// Reduce queues a bucket.
func (e *Engine) Reduce(b *ddp.Bucket) { e.toStart <- e.jobs[b.Index] }

func (e *Engine) start() {
	e.toStart, e.toExchange = make(chan *job, len(e.jobs)), make(chan *job, len(e.jobs))
	e.running.Add(2)
	go e.startLoop()
	go e.exchangeLoop()
}

func (e *Engine) stop() {
	if e.toStart != nil {
		close(e.toStart)
		e.running.Wait()
		e.toStart = nil
	}
}

// Stepped tells the Recorder.
func (e *Engine) Stepped(t ddp.Timing) { e.watch.stepped(t, e.Stats()) }

// Abort fails the engine on every rank.
func (e *Engine) Abort(cause error) { _ = e.fail(cause) }

// Close ends the engine's goroutines once the buckets under way are done. The groups stay open.
func (e *Engine) Close() { e.stop() }

// fail keeps the first error and takes the other ranks down with it.
func (e *Engine) fail(err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
		e.cfg.Data.Abort(err)
		e.cfg.Control.Abort(err)
	}
	return e.err
}

func (e *Engine) failed() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

func (e *Engine) startLoop() {
	defer e.running.Done()
	defer close(e.toExchange)
	held := make([]*job, 0, len(e.jobs))
	for j := range e.toStart {
		if e.cfg.ClipNorm == 0 {
			e.startJob(j)
			continue
		}
		if held = append(held, j); len(held) < len(e.jobs) {
			continue
		}
		e.clip(held)
		for _, j := range held {
			e.startJob(j)
		}
		held = held[:0]
	}
}

// startJob begins j and hands it on, with its error where there is one.
func (e *Engine) startJob(j *job) {
	if j.err = e.failed(); j.err == nil {
		if err := e.begin(j); err != nil {
			j.err = e.fail(err)
		}
	}
	e.toExchange <- j
}

// clip scales the gradient of a step, all buckets of it, down to the norm that the config allows. Buckets with something that is not
// finite are exchanged as they are and do not count.
func (e *Engine) clip(all []*job) {
	if e.failed() != nil {
		return
	}
	kernels.Zero(e.front, e.norm)
	for _, j := range all {
		var err error
		if j.dense, err = e.poisoned(j); err != nil {
			_ = e.fail(err)
			return
		}
		if !j.dense {
			kernels.SumSquares(e.front, e.norm, j.b.Grad)
		}
	}
	limit := float32(e.cfg.ClipNorm / math.Sqrt(float64(e.cfg.Data.Size())))
	for _, j := range all {
		if !j.dense {
			kernels.ClipNorm(e.front, j.b.Grad, e.norm, limit)
		}
	}
}

func (e *Engine) exchangeLoop() {
	defer e.running.Done()
	for j := range e.toExchange {
		if j.err == nil {
			if err := e.finish(j); err != nil {
				j.err = e.fail(err)
			}
		}
		j.b.Finish(j.err)
	}
}

// begin is the first half of a bucket's step: agree that all is finite, start the compressors, encode what they offer.
func (e *Engine) begin(j *job) (err error) {
	e.watch.begin(j.b)
	t0 := time.Now()
	if e.cfg.ClipNorm == 0 {
		if j.dense, err = e.poisoned(j); err != nil {
			return err
		}
	}
	t1 := time.Now()
	if !j.dense {
		for i, sp := range j.spans {
			if j.payloads[i], err = sp.c.Start(e.ctx, e.front, sp.grad); err != nil {
				return err
			}
		}
		if err = e.encode(j, e.front); err != nil {
			return err
		}
		if err = e.front.Sync(e.ctx); err != nil {
			return err
		}
	}
	t2 := time.Now()
	if j.guarded {
		e.watch.span(j.b, Agree, t0, t1)
	}
	e.watch.span(j.b, Compress, t1, t2)
	if err := e.offered(j, e.front, &e.stage.front.n); err != nil {
		return err
	}
	e.count(func(s *Stats) {
		s.Exchange += t1.Sub(t0)
		s.Compress += t2.Sub(t1)
		s.DenseBytes += int64(4 * j.b.Grad.Len())
	})
	return nil
}

// poisoned tells whether any rank's gradient in this bucket is not finite. Then nothing may enter a residual.
func (e *Engine) poisoned(j *job) (bool, error) {
	if !j.guarded {
		return false, nil
	}
	kernels.Zero(e.front, e.flag)
	kernels.NonFinite(e.front, e.flag, j.b.Grad)
	bad, err := kernels.View(e.ctx, e.front, e.flag, &e.stage.flag)
	if err != nil {
		return false, err
	}
	any, err := e.cfg.Control.MaxByte(e.ctx, byte(bad[0]))
	e.count(func(s *Stats) {
		s.PayloadBytes++
		s.NonFinite += int64(any)
	})
	return any != 0, err
}

// offered notes how many numbers a round's payloads hold.
func (e *Engine) offered(j *job, s kernels.Stream, stage *[]uint32) error {
	if e.watch == nil {
		return nil
	}
	for i, sp := range j.spans {
		var p compress.Payload = &compress.Linear{X: sp.grad}
		if !j.dense {
			p = j.payloads[i]
		}
		if err := e.watch.offered(e.ctx, s, p, sp.grad.Len(), stage); err != nil {
			return err
		}
	}
	return nil
}

// finish is the second half: exchange and feed back, round by round, until no compressor has anything more to say.
func (e *Engine) finish(j *job) error {
	t0 := time.Now()
	if j.dense {
		e.count(func(s *Stats) { s.PayloadBytes += int64(4 * j.b.Grad.Len()) })
		err := e.cfg.Data.AllReduce(e.ctx, e.back, j.b.Grad, collective.Reduction{Op: collective.Mean})
		if err == nil {
			err = e.back.Sync(e.ctx)
		}
		t1 := time.Now()
		e.watch.span(j.b, Exchange, t0, t1)
		e.count(func(s *Stats) { s.Exchange += t1.Sub(t0) })
		return err
	}
	for {
		decoded := e.Stats().Decode
		err := e.exchange(j)
		if err != nil {
			return err
		}
		t1 := time.Now()
		arrived := t1.Add(decoded - e.Stats().Decode) // decoding is the last thing that exchange does
		left := false
		for i, sp := range j.spans {
			if j.payloads[i] == nil {
				continue
			}
			if j.payloads[i], err = sp.c.Next(e.ctx, e.back, j.got[i], sp.grad); err != nil {
				return err
			}
			left = left || j.payloads[i] != nil
		}
		if !left {
			if err = e.back.Sync(e.ctx); err != nil {
				return err
			}
		}
		t2 := time.Now()
		if left {
			if err = e.encode(j, e.back); err != nil {
				return err
			}
		}
		t3 := time.Now()
		e.watch.span(j.b, Exchange, t0, arrived)
		e.watch.span(j.b, Decode, arrived, t3)
		e.count(func(s *Stats) {
			s.Exchange += t1.Sub(t0)
			s.Decode += t2.Sub(t1)
			s.Compress += t3.Sub(t2)
		})
		if !left {
			break
		}
		if err = e.offered(j, e.back, &e.stage.back.n); err != nil {
			return err
		}
		t0 = time.Now()
	}
	if e.watch == nil || !e.cfg.Residuals {
		return nil
	}
	return e.watch.owes(e.ctx, e.back, j.spans)
}

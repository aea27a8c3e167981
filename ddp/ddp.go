// Package ddp stands between a backward pass and the exchange of gradients: a Reducer puts parameters into buckets, and hands each
// bucket to a Hook as soon as its gradients are final, while the backward pass goes on (Li et al., "PyTorch Distributed", VLDB 2020).
package ddp

import (
	"context"
	"fmt"
	"time"

	"github.com/gradpress/gradpress/kernels"
)

// Param is one trainable tensor. Shape is row-major.
type Param struct {
	Name  string
	Shape []int
}

// Len is the number of elements.
func (p Param) Len() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// Class is what a hook wants of a parameter's place: parameters of one class lie next to each other in a bucket, and those of a
// class that is Together share one bucket whatever its size.
type Class struct {
	Name     string
	Together bool
}

// Hook replaces the gradients of a bucket by their mean over ranks. Its methods are called from one goroutine.
type Hook interface {
	// Plan says which class each parameter belongs to, before the layout is made.
	Plan(params []Param) ([]Class, error)
	// Bind announces the layout, before the first step and whenever it changes. No bucket is under way.
	Bind(params []Param, buckets []*Bucket) error
	// Reduce begins the exchange of b and returns at once. It is called in bucket order on every rank. Finish is called on b when
	// its gradients hold the mean.
	Reduce(b *Bucket)
}

// Stepper is a Hook that wants to know when a step is over.
type Stepper interface{ Stepped(t Timing) }

// Aborter is a Hook that can take the other ranks down, so that they do not wait for one whose reducer has failed.
type Aborter interface{ Abort(cause error) }

// Timing is how a step went: First and Last are when the first gradient became final and when the last did, zero where there was no
// backward pass. Wait is how long the caller then waited.
type Timing struct {
	Step        int
	First, Last time.Time
	Wait        time.Duration
}

// Group is how the reducers of all ranks agree; a collective.Group is one. Nobody else may issue calls on it: buckets are under way
// on the groups of the hook while a reducer agrees.
type Group interface {
	Broadcast(ctx context.Context, b []byte, root int) error
	AllGather(ctx context.Context, mine []byte) ([][]byte, error)
	Abort(cause error)
}

// Config sets a Reducer. All ranks must set it alike.
type Config struct {
	Dev kernels.Device
	// BucketBytes is the size at which a bucket is full; a larger tensor has a bucket of its own. Default 25 MiB.
	BucketBytes int
	// FirstBytes is the same for the first bucket, which is smaller so that the exchange begins early. Default 1 MiB; never more than
	// BucketBytes.
	FirstBytes int
	// Group is needed by what follows.
	Group Group
	// Moved, if set, asks for the buckets to be laid out once more after the first step, in the order in which rank 0 saw gradients
	// become final. It is called at the end of Wait or of a step of Join if that moved the gradients: windows from Grad are then dead.
	Moved func()
	// FindUnused lets parameters go without a gradient. One that no rank has used since the last exchange keeps the gradient that it
	// has, and what a hook delivers for it, as one with feedback may, is lost; on a rank that alone has not used it, it counts as zero.
	FindUnused bool
	// Uneven lets ranks run out of data at different times: each then calls Join.
	Uneven bool
}

// DefaultBucketBytes and DefaultFirstBytes are PyTorch's.
const (
	DefaultBucketBytes = 25 << 20
	DefaultFirstBytes  = 1 << 20
)

func (c *Config) check() error {
	if c.BucketBytes == 0 {
		c.BucketBytes = DefaultBucketBytes
	}
	if c.FirstBytes == 0 {
		c.FirstBytes = DefaultFirstBytes
	}
	c.FirstBytes = min(c.FirstBytes, c.BucketBytes)
	switch {
	case c.BucketBytes < 0:
		return fmt.Errorf("ddp: bucket size %d, want more than 0 bytes", c.BucketBytes)
	case c.FirstBytes < 0:
		return fmt.Errorf("ddp: size of the first bucket %d, want more than 0 bytes", c.FirstBytes)
	case c.Group == nil && (c.Moved != nil || c.FindUnused || c.Uneven):
		return fmt.Errorf("ddp: Moved, FindUnused and Uneven need a Group")
	}
	return nil
}

// Reducer averages the gradients of one model replica with those of the other ranks. One goroutine only. After an error it is dead.
type Reducer struct {
	params  []Param
	hook    Hook
	cfg     Config
	classes []Class
	stream  kernels.Stream
	buckets []*Bucket
	home    []place // of each parameter

	ready  []bool // in this step
	used   []bool // since the last exchange, NoSync included
	shared []bool // used by any rank, as agreed
	next   int    // bucket to launch
	step   int    // exchanges so far
	order  []int  // in which gradients became final, until the buckets are rebuilt; then nil
	nosync bool
	err    error

	aside kernels.Buf[float32] // gradients of unused parameters during an exchange, end to end
	kept  []int                // whose
}

// New lays the parameters out in buckets, in reverse order, since backward finishes the last ones first. All ranks must pass the
// same parameters.
func New(params []Param, h Hook, cfg Config) (*Reducer, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, p := range params {
		if p.Name == "" || seen[p.Name] {
			return nil, fmt.Errorf("ddp: parameter name %q is empty or used twice", p.Name)
		}
		seen[p.Name] = true
	}
	r := &Reducer{params: params, hook: h, cfg: cfg, ready: make([]bool, len(params)), used: make([]bool, len(params)), shared: make([]bool, len(params))}
	var err error
	if r.classes, err = h.Plan(params); err != nil {
		return nil, err
	}
	if len(r.classes) != len(params) {
		panic(fmt.Sprintf("ddp: a plan of %d classes for %d parameters", len(r.classes), len(params)))
	}
	if r.stream, err = cfg.Dev.NewStream(); err != nil {
		return nil, err
	}
	order := make([]int, len(params))
	for i := range order {
		order[i] = len(params) - 1 - i
	}
	members := plan(params, r.classes, order, cfg.FirstBytes, cfg.BucketBytes)
	if r.buckets, r.home, err = build(params, r.classes, members, cfg.Dev); err != nil {
		return nil, err
	}
	if cfg.Moved != nil {
		r.order = make([]int, 0, len(params))
	}
	r.begin()
	return r, h.Bind(params, r.buckets)
}

// begin makes ready for the next step.
func (r *Reducer) begin() {
	clear(r.ready)
	r.next = 0
	for _, b := range r.buckets {
		b.missing, b.Began, b.Filled = 0, time.Time{}, time.Time{}
		for _, s := range b.Spans {
			b.missing += len(s.Params)
		}
	}
}

// Grad is where the gradient of parameter i lives: a window on its bucket. Backward adds to it; whoever steps clears it.
func (r *Reducer) Grad(i int) kernels.Buf[float32] {
	p := r.home[i]
	return r.buckets[p.bucket].Grad.Slice(p.lo, p.hi)
}

// Buckets is the layout, in the order of exchange.
func (r *Reducer) Buckets() []*Bucket { return r.buckets }

// Ready says that gradient i is final. When that completes the next bucket in order, its exchange begins.
func (r *Reducer) Ready(i int) error {
	switch {
	case r.err != nil:
		return r.err
	case i < 0 || i >= len(r.params):
		panic(fmt.Sprintf("ddp: parameter %d of %d", i, len(r.params)))
	case r.nosync:
		r.used[i] = true
		return nil
	case r.ready[i]:
		return r.fail(fmt.Errorf("ddp: parameter %q is ready for the second time in one step", r.params[i].Name))
	}
	r.ready[i], r.used[i] = true, true
	if r.order != nil {
		r.order = append(r.order, i)
	}
	b := r.buckets[r.home[i].bucket]
	if b.Began.IsZero() {
		b.Began = time.Now()
	}
	if b.missing--; b.missing == 0 {
		b.Filled = time.Now()
	}
	for r.next < len(r.buckets) && r.buckets[r.next].missing == 0 {
		r.launch()
	}
	return nil
}

func (r *Reducer) launch() {
	r.hook.Reduce(r.buckets[r.next])
	r.next++
}

// Wait ends the step: it returns once all gradients hold the mean. Without FindUnused a parameter that was never ready is an error
// that names it.
func (r *Reducer) Wait(ctx context.Context) error {
	start := time.Now()
	if r.err != nil {
		return r.err
	}
	if !r.cfg.FindUnused {
		if err := r.complete(); err != nil {
			return r.fail(err)
		}
	}
	if err := r.exchange(ctx, start); err != nil {
		return r.fail(err)
	}
	return nil
}

// exchange ends the step of a rank that trains. The ranks agree while the buckets are under way.
func (r *Reducer) exchange(ctx context.Context, start time.Time) error {
	if err := r.send(ctx); err != nil {
		return err
	}
	if r.cfg.FindUnused || r.cfg.Uneven {
		if _, err := r.agree(ctx, true); err != nil {
			return err
		}
	}
	return r.receive(ctx, start)
}

// complete is an error unless every parameter is ready.
func (r *Reducer) complete() error {
	first, n := "", 0
	for i, ok := range r.ready {
		if !ok {
			if n == 0 {
				first = r.params[i].Name
			}
			n++
		}
	}
	if n > 0 {
		return fmt.Errorf("ddp: no gradient came for %q (%d of %d parameters)", first, n, len(r.params))
	}
	return nil
}

// send launches what is not yet on its way.
func (r *Reducer) send(ctx context.Context) error {
	if err := r.setAside(ctx); err != nil {
		return err
	}
	for r.next < len(r.buckets) {
		r.launch()
	}
	return nil
}

// receive waits for all buckets and makes ready for the next step.
func (r *Reducer) receive(ctx context.Context, start time.Time) error {
	for _, b := range r.buckets {
		select {
		case err := <-b.Done():
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := r.putBack(ctx); err != nil {
		return err
	}
	r.stepped(start)
	clear(r.used)
	if err := r.rebuild(ctx); err != nil {
		return err
	}
	r.begin()
	return nil
}

// stepped tells a hook that wants to know.
func (r *Reducer) stepped(start time.Time) {
	if h, ok := r.hook.(Stepper); ok {
		t := Timing{Step: r.step, Wait: time.Since(start)}
		for _, b := range r.buckets {
			if b.Began.IsZero() {
				continue
			}
			if t.First.IsZero() || b.Began.Before(t.First) {
				t.First = b.Began
			}
			if b.Filled.After(t.Last) {
				t.Last = b.Filled
			}
		}
		h.Stepped(t)
	}
	r.step++
}

// fail ends the reducer, and tells the other ranks, who would wait for this one.
func (r *Reducer) fail(err error) error {
	r.err = err
	if h, ok := r.hook.(Aborter); ok {
		h.Abort(err)
	}
	if r.cfg.Group != nil {
		r.cfg.Group.Abort(err)
	}
	return err
}

// NoSync runs f, in which gradients add up and are not exchanged.
func (r *Reducer) NoSync(f func() error) error {
	r.nosync = true
	defer func() { r.nosync = false }()
	return f()
}

package hooks

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/kernels"
)

// Inner is a hook that Delayed can drive.
type Inner interface {
	ddp.Hook
	OwnsMomentum() compress.Momentum
	Save() (compress.Snapshot, error)
	Restore(compress.Snapshot) error
	Close()
}

// Delay sets a Delayed.
type Delay struct {
	Dev kernels.Device
	// Steps is how late a mean arrives. With 0 the inner hook is as it would be alone.
	Steps int
	// Uncorrected applies the late mean alone, and nothing at all before the first has come: the baseline that the correction improves.
	Uncorrected bool
}

// Delayed is delayed gradient averaging (Zhu et al. 2021): at step i a rank applies (g(i) - g(i-D)) + mean(i-D), and g(i) while i < D, and
// has D steps of time for an exchange. It keeps 2D+1 copies of the gradients. Ranks differ by what is still under way: after Drain,
// average the weights and the optimizer's state once, and they are equal.
//
// A gradient that is not finite shows in two steps, its own and the one that takes it back.
type Delayed struct {
	ctx     context.Context
	cfg     Delay
	inner   Inner
	stream  kernels.Stream
	scratch kernels.Buf[float32] // of the largest bucket

	params []ddp.Param
	tracks []*track
	queue  chan request
	ended  chan struct{}
	rate   float64

	// Of the loop.
	waiting, out []flight // for the inner hook, with the inner hook
	err          error    // the first; nothing more is sent then
}

// track is a bucket with what is under way of it. Step i is in slots[i % D].
type track struct {
	inner *ddp.Bucket
	busy  bool // with the inner hook
	step  int
	slots []slot
}

// slot is one step of a bucket: what this rank had, and the mean once it has arrived.
type slot struct {
	g, mean kernels.Buf[float32]
	rate    float64 // the learning rate of that step
	live    bool    // not yet settled
	arrived bool
}

// request is a bucket at a step's learning rate, or, with idle, the wish to know when nothing is under way.
type request struct {
	b    *ddp.Bucket
	rate float64
	idle chan error
}

// flight is an exchange that the inner hook has or will have.
type flight struct {
	track         *track
	slot          *slot
	began, filled time.Time
}

// NewDelayed puts a delay around a hook, which it then owns.
func NewDelayed(ctx context.Context, inner Inner, cfg Delay) (*Delayed, error) {
	_, twice := inner.(*Delayed)
	switch {
	case cfg.Steps < 0:
		return nil, fmt.Errorf("hooks: delay of %d steps, want 0 or more", cfg.Steps)
	case twice:
		return nil, errors.New("hooks: a delay around a delay: add up their steps")
	case cfg.Steps > 0 && inner.OwnsMomentum().M != 0:
		return nil, fmt.Errorf("hooks: a delay around a method that applies momentum %v itself: the gradients that are applied at once would have none",
			inner.OwnsMomentum().M)
	}
	s, err := cfg.Dev.NewStream()
	return &Delayed{ctx: ctx, cfg: cfg, inner: inner, stream: s, rate: 1}, err
}

// SetRate tells the learning rate of the step that begins. A correction belongs to the rate of its own step, so the optimizer, which applies
// the present one, is handed it scaled. While the rate is 0 nothing can be corrected, and nothing is: corrections have mean zero over ranks.
func (d *Delayed) SetRate(rate float64) { d.rate = rate }

// OwnsMomentum is that of the inner hook.
func (d *Delayed) OwnsMomentum() compress.Momentum { return d.inner.OwnsMomentum() }

// Plan is that of the inner hook.
func (d *Delayed) Plan(params []ddp.Param) ([]ddp.Class, error) { return d.inner.Plan(params) }

// Bind gives the inner hook buckets of its own. What is under way moves to the new layout by name.
func (d *Delayed) Bind(params []ddp.Param, buckets []*ddp.Bucket) (err error) {
	if d.cfg.Steps == 0 {
		return d.inner.Bind(params, buckets)
	}
	var saved compress.Snapshot
	if d.tracks != nil {
		if saved, err = d.pending(); err != nil {
			return err
		}
		d.stop()
		for _, t := range d.tracks {
			t.free()
		}
	}
	d.params, d.tracks = params, make([]*track, len(buckets))
	inner := make([]*ddp.Bucket, len(buckets))
	largest := 0
	for k, b := range buckets {
		if d.tracks[k], err = newTrack(d.cfg, b); err != nil {
			return err
		}
		inner[k] = d.tracks[k].inner
		largest = max(largest, b.Grad.Len())
	}
	if err := kernels.Resize(d.cfg.Dev, &d.scratch, largest); err != nil {
		return err
	}
	if err := d.inner.Bind(params, inner); err != nil {
		return err
	}
	if saved != nil {
		if err := d.resume(saved); err != nil {
			return err
		}
	}
	d.queue, d.ended = make(chan request, len(buckets)+1), make(chan struct{})
	go d.loop()
	return nil
}

func newTrack(cfg Delay, b *ddp.Bucket) (*track, error) {
	t := &track{slots: make([]slot, cfg.Steps)}
	grad, err := kernels.NewBuf[float32](cfg.Dev, b.Grad.Len())
	t.inner = ddp.NewBucket(b.Index, grad, b.Spans)
	for i := range t.slots {
		for _, buf := range []*kernels.Buf[float32]{&t.slots[i].g, &t.slots[i].mean} {
			if err == nil {
				*buf, err = kernels.NewBuf[float32](cfg.Dev, b.Grad.Len())
			}
		}
	}
	return t, err
}

func (t *track) free() {
	t.inner.Grad.Free()
	for _, sl := range t.slots {
		sl.g.Free()
		sl.mean.Free()
	}
}

// Reduce queues a bucket.
func (d *Delayed) Reduce(b *ddp.Bucket) {
	if d.cfg.Steps == 0 {
		d.inner.Reduce(b)
		return
	}
	d.queue <- request{b: b, rate: d.rate}
}

// loop owns the tracks while it runs. Exchanges go to the inner hook in the order of requests, so that it sees the same calls on every rank.
func (d *Delayed) loop() {
	defer close(d.ended)
	for {
		var oldest <-chan error
		if len(d.out) > 0 {
			oldest = d.out[0].track.inner.Done()
		}
		select {
		case err := <-oldest:
			d.land(err)
		case r, open := <-d.queue:
			switch {
			case !open:
				d.settle(nil)
				return
			case r.idle != nil:
				d.settle(nil)
				r.idle <- d.err
			default:
				r.b.Finish(d.serve(r))
			}
		}
	}
}

// settle waits until sl has arrived, or with nil until nothing is under way.
func (d *Delayed) settle(sl *slot) {
	for len(d.out) > 0 && (sl == nil || sl.live && !sl.arrived) {
		d.land(<-d.out[0].track.inner.Done())
	}
}

// serve is one bucket's step. What it puts on its way is in a slot that has just become free.
func (d *Delayed) serve(r request) error {
	t := d.tracks[r.b.Index]
	sl := &t.slots[t.step%d.cfg.Steps]
	t.step++
	d.settle(sl)
	if d.err == nil {
		d.apply(sl, r)
		if d.err = d.stream.Sync(d.ctx); d.err != nil {
			d.Abort(d.err)
		}
	}
	d.waiting = append(d.waiting, flight{t, sl, r.b.Began, r.b.Filled})
	d.send()
	return d.err
}

// apply turns the bucket's gradient into what is to be applied now, and puts the gradient into the slot of the step that it settles.
func (d *Delayed) apply(sl *slot, r request) {
	s, v := d.stream, r.b.Grad
	own := d.scratch.Slice(0, v.Len())
	kernels.Copy(s, own, v)
	switch {
	case d.cfg.Uncorrected && !sl.live:
		kernels.Zero(s, v)
	case d.cfg.Uncorrected:
		kernels.Copy(s, v, sl.mean)
	case sl.live && r.rate != 0:
		scale := float32(sl.rate / r.rate)
		kernels.Add(s, v, -scale, sl.g)
		kernels.Add(s, v, scale, sl.mean)
	}
	kernels.Copy(s, sl.g, own)
	sl.rate, sl.live, sl.arrived = r.rate, true, false
}

// send gives the inner hook what it can take: one step of a bucket at a time.
func (d *Delayed) send() {
	for d.err == nil && len(d.waiting) > 0 && !d.waiting[0].track.busy {
		f := d.waiting[0]
		b := f.track.inner
		kernels.Copy(d.stream, b.Grad, f.slot.g)
		if d.err = d.stream.Sync(d.ctx); d.err != nil {
			d.Abort(d.err)
			return
		}
		f.track.busy, b.Began, b.Filled = true, f.began, f.filled
		d.waiting, d.out = d.waiting[1:], append(d.out, f)
		d.inner.Reduce(b)
	}
}

// land takes the oldest exchange back from the inner hook.
func (d *Delayed) land(err error) {
	f := d.out[0]
	d.out = d.out[1:]
	f.track.busy, f.slot.arrived = false, true
	if err == nil && d.err == nil {
		kernels.Copy(d.stream, f.slot.mean, f.track.inner.Grad)
		if err = d.stream.Sync(d.ctx); err != nil {
			d.Abort(err)
		}
	}
	if d.err == nil {
		d.err = err
	}
	d.send()
}

// idle waits until nothing is under way. The tracks are then the caller's until the next request.
func (d *Delayed) idle() error {
	if d.queue == nil {
		return nil
	}
	r := request{idle: make(chan error, 1)}
	d.queue <- r
	return <-r.idle
}

// Drain waits for what is under way and forgets it: its corrections have mean zero over ranks, so that averaging the weights settles them.
// A step that follows is the first of a new delay.
func (d *Delayed) Drain() error {
	if err := d.idle(); err != nil {
		return err
	}
	for _, t := range d.tracks {
		for i := range t.slots {
			t.slots[i].live = false
		}
	}
	return nil
}

// Save is the inner hook's state and what is under way, by parameter name. It waits for the exchanges.
func (d *Delayed) Save() (compress.Snapshot, error) {
	all, err := d.pending()
	if err != nil {
		return nil, err
	}
	inner, err := d.inner.Save()
	maps.Copy(all, inner)
	return all, err
}

// Restore is the reverse of Save.
func (d *Delayed) Restore(all compress.Snapshot) error {
	if err := d.idle(); err != nil {
		return err
	}
	if err := d.inner.Restore(all); err != nil {
		return err
	}
	return d.resume(all)
}

func (d *Delayed) pending() (compress.Snapshot, error) {
	if err := d.idle(); err != nil {
		return nil, err
	}
	all := compress.Snapshot{}
	if len(d.tracks) == 0 {
		return all, nil
	}
	all[stepKey] = binary.LittleEndian.AppendUint64(nil, uint64(d.tracks[0].step))
	for i, sl := range d.tracks[0].slots {
		if sl.live {
			all[rateKey(i)] = binary.LittleEndian.AppendUint64(nil, math.Float64bits(sl.rate))
		}
	}
	err := d.eachWindow(func(name string, sl *slot, w kernels.Buf[float32]) error {
		if !sl.live {
			return nil
		}
		x := make([]byte, 4*w.Len())
		all[name] = x
		return kernels.Read(d.ctx, d.stream, x, kernels.Bytes(w))
	})
	return all, err
}

func (d *Delayed) resume(all compress.Snapshot) error {
	if len(d.tracks) == 0 {
		return nil
	}
	raw := all[stepKey]
	if len(raw) != 8 {
		return fmt.Errorf("hooks: saved state %q has %d bytes, want 8: was it saved without a delay?", stepKey, len(raw))
	}
	step := binary.LittleEndian.Uint64(raw)
	if step > math.MaxInt {
		return fmt.Errorf("hooks: saved state %q is %d", stepKey, step)
	}
	for _, t := range d.tracks {
		t.step = int(step)
		for i := range t.slots {
			rate, live := all[rateKey(i)]
			if live && len(rate) != 8 {
				return fmt.Errorf("hooks: saved state %q has %d bytes, want 8", rateKey(i), len(rate))
			}
			t.slots[i].live, t.slots[i].arrived = live, live
			if live {
				t.slots[i].rate = math.Float64frombits(binary.LittleEndian.Uint64(rate))
			}
		}
	}
	err := d.eachWindow(func(name string, sl *slot, w kernels.Buf[float32]) error {
		if !sl.live {
			return nil
		}
		x, ok := all[name]
		if !ok || len(x) != 4*w.Len() {
			return fmt.Errorf("hooks: saved state %q has %d bytes, want %d: was it saved with another delay?", name, len(x), 4*w.Len())
		}
		kernels.Write(d.stream, kernels.Bytes(w), x)
		return nil
	})
	if err != nil {
		return err
	}
	return d.stream.Sync(d.ctx)
}

const stepKey = "delayed/step"

func rateKey(slot int) string { return fmt.Sprintf("delayed/%d/rate", slot) }

// eachWindow calls f for every parameter's part of every slot.
func (d *Delayed) eachWindow(f func(name string, sl *slot, w kernels.Buf[float32]) error) error {
	for _, t := range d.tracks {
		at := 0
		for _, span := range t.inner.Spans {
			for _, p := range span.Params {
				hi := at + d.params[p].Len()
				for i := range t.slots {
					sl := &t.slots[i]
					name := fmt.Sprintf("%s/delayed/%d/", d.params[p].Name, i)
					if err := errors.Join(f(name+"g", sl, sl.g.Slice(at, hi)), f(name+"mean", sl, sl.mean.Slice(at, hi))); err != nil {
						return err
					}
				}
				at = hi
			}
		}
	}
	return nil
}

// StateBytes is the size of the gradients and means under way.
func (d *Delayed) StateBytes() int {
	n := 0
	for _, t := range d.tracks {
		n += 4 * 2 * len(t.slots) * t.inner.Grad.Len()
	}
	return n
}

// Stepped tells the inner hook.
func (d *Delayed) Stepped(t ddp.Timing) {
	if h, ok := d.inner.(ddp.Stepper); ok {
		h.Stepped(t)
	}
}

// Abort fails the inner hook on every rank.
func (d *Delayed) Abort(cause error) {
	if h, ok := d.inner.(ddp.Aborter); ok {
		h.Abort(cause)
	}
}

func (d *Delayed) stop() {
	if d.queue != nil {
		close(d.queue)
		<-d.ended
		d.queue = nil
	}
}

// Close waits for what is under way, and closes the inner hook.
func (d *Delayed) Close() {
	d.stop()
	d.inner.Close()
}

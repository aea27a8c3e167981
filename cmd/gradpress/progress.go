package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/gradpress/gradpress/eval"
)

// progress shows long work: bars on a terminal, else a line now and then.
type progress struct {
	w    io.Writer
	on   bool
	bars *mpb.Progress // nil where there is no terminal
	now  *task
}

// task is one piece of work under way.
type task struct {
	text string
	from time.Time
	next time.Time // when a line is due
	bar  *mpb.Bar  // nil where there is no terminal

	mu   sync.Mutex
	loss float64 // smoothed; 0 where there is none
}

// every is how often a line is printed where there is no terminal.
const every = 10 * time.Second

func newProgress(w io.Writer, on bool) *progress {
	p := &progress{w: w, on: on}
	if f, ok := w.(*os.File); ok && on {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			p.bars = mpb.New(mpb.WithOutput(w), mpb.WithWidth(40))
		}
	}
	return p
}

// run begins a training run and returns what is to be called after each step.
func (p *progress) run(name, method string, steps int) func(step int, loss float64) {
	if !p.on {
		return nil
	}
	t := p.begin(name+"  "+method, int64(steps))
	return func(step int, loss float64) { p.update(t, int64(step), int64(steps), loss) }
}

// load begins loading data.
func (p *progress) load(name string) func(done, total int64) {
	if !p.on {
		return nil
	}
	t := p.begin(name+"  data", 0)
	return func(done, total int64) { p.update(t, done, total, 0) }
}

func (p *progress) begin(text string, total int64) *task {
	t := &task{text: text, from: time.Now(), next: time.Now().Add(every)}
	p.now = t
	if p.bars != nil {
		t.bar = p.bars.AddBar(total,
			mpb.PrependDecorators(decor.Name(text+" ", decor.WCSyncWidth), decor.CountersNoUnit("%d/%d", decor.WCSyncWidth)),
			mpb.AppendDecorators(decor.Any(t.shown), decor.OnComplete(decor.AverageETA(decor.ET_STYLE_GO), "done")))
	}
	return t
}

// shown is the loss as it stands beside the bar.
func (t *task) shown(decor.Statistics) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.loss == 0 {
		return ""
	}
	return fmt.Sprintf("loss %.3f ", t.loss)
}

func (p *progress) update(t *task, done, total int64, loss float64) {
	t.mu.Lock()
	if t.loss == 0 {
		t.loss = loss
	}
	t.loss += 0.05 * (loss - t.loss)
	t.mu.Unlock()
	if t.bar != nil {
		t.bar.SetTotal(total, false)
		t.bar.SetCurrent(done)
		return
	}
	if now := time.Now(); now.After(t.next) && total > 0 {
		t.next = now.Add(every)
		left := time.Duration(float64(now.Sub(t.from)) * float64(total-done) / float64(done))
		fmt.Fprintf(p.w, "%s  %d/%d  %s%s left\n", t.text, done, total, t.shown(decor.Statistics{}), left.Round(time.Second))
	}
}

// end finishes what was begun last; rec is the outcome of a run, or nil.
func (p *progress) end(rec *eval.Record) {
	t := p.now
	if t == nil {
		return
	}
	p.now = nil
	switch {
	case t.bar == nil:
	case rec == nil: // data is there, or the run has failed
		t.bar.Abort(true)
	default:
		t.bar.SetTotal(-1, true)
	}
	if rec != nil && p.bars == nil {
		final := "diverged"
		if rec.Final != nil && !rec.Diverged {
			final = fmt.Sprintf("%s %.4f", rec.Metric, *rec.Final)
		}
		fmt.Fprintf(p.w, "%s  %s  payload %.0fx  %.1f s\n", t.text, final, rec.PayloadRatio, rec.Seconds)
	}
}

func (p *progress) close() {
	if p.bars != nil {
		p.bars.Wait()
		p.bars = nil
	}
}

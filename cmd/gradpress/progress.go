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

	mu   sync.Mutex
	bar  *mpb.Bar
	text string
	loss float64
	next time.Time
	from time.Time
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
func (p *progress) run(task, method string, steps int) func(step int, loss float64) {
	if !p.on {
		return nil
	}
	p.begin(task+"  "+method, int64(steps))
	return func(step int, loss float64) { p.update(int64(step), int64(steps), loss) }
}

// load begins loading data.
func (p *progress) load(task string) func(done, total int64) {
	if !p.on {
		return nil
	}
	p.begin(task+"  data", 0)
	return func(done, total int64) { p.update(done, total, 0) }
}

func (p *progress) begin(text string, total int64) {
	p.text, p.loss, p.from = text, 0, time.Now()
	p.next = p.from.Add(every)
	if p.bars != nil {
		p.bar = p.bars.AddBar(total,
			mpb.PrependDecorators(decor.Name(text+" ", decor.WCSyncWidth), decor.CountersNoUnit("%d/%d", decor.WCSyncWidth)),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string {
				p.mu.Lock()
				defer p.mu.Unlock()
				if p.loss == 0 {
					return ""
				}
				return fmt.Sprintf("loss %.3f ", p.loss)
			}), decor.OnComplete(decor.AverageETA(decor.ET_STYLE_GO), "done")))
	}
}

func (p *progress) update(done, total int64, loss float64) {
	p.mu.Lock()
	if p.loss == 0 {
		p.loss = loss
	}
	p.loss += 0.05 * (loss - p.loss)
	shown := p.loss
	p.mu.Unlock()
	if p.bar != nil {
		p.bar.SetTotal(total, false)
		p.bar.SetCurrent(done)
		return
	}
	if now := time.Now(); now.After(p.next) && total > 0 {
		p.next = now.Add(every)
		left := time.Duration(float64(now.Sub(p.from)) * float64(total-done) / float64(done))
		fmt.Fprintf(p.w, "%s  %d/%d  loss %.3f  %s left\n", p.text, done, total, shown, left.Round(time.Second))
	}
}

// end finishes what was begun last; rec is the outcome of a run, or nil.
func (p *progress) end(rec *eval.Record) {
	if !p.on {
		return
	}
	if p.bar != nil {
		p.bar.SetTotal(-1, true)
		p.bar = nil
	}
	if rec != nil && p.bars == nil {
		final := "diverged"
		if rec.Final != nil && !rec.Diverged {
			final = fmt.Sprintf("%s %.4f", rec.Metric, *rec.Final)
		}
		fmt.Fprintf(p.w, "%s  %s  payload %.0fx  %.1f s\n", p.text, final, rec.PayloadRatio, rec.Seconds)
	}
}

func (p *progress) close() {
	if p.bars != nil {
		p.bars.Wait()
		p.bars = nil
	}
}

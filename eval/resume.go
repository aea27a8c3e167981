package eval

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/eval/checkpoint"
)

// Checkpoints says whether and where a run is saved. The zero value is nowhere.
type Checkpoints struct {
	Dir    string
	Every  int  // steps between two of them
	Resume bool // go on from the newest that all ranks have; without one begin at the beginning
}

// keeper saves one rank's run and finds it again. The last two checkpoints are kept: a rank may be killed while others have written
// theirs already.
type keeper struct {
	Checkpoints
	header checkpoint.Header
}

func (w *replica) header(r Run) checkpoint.Header {
	h := checkpoint.Header{Task: r.Task.Name, Method: r.name(), Rank: w.seat.Data.Rank(), Workers: r.Settings.Workers,
		Settings: fmt.Sprintf("%+v %+v", r.Settings, r.Method.Config)}
	for _, b := range w.reducer.Buckets() {
		var members []int
		for _, s := range b.Spans {
			members = append(members, s.Params...)
		}
		h.Layout = append(h.Layout, members)
	}
	return h
}

var unsafe = regexp.MustCompile(`[^a-zA-Z0-9.=-]+`)

func (k *keeper) prefix() string {
	return fmt.Sprintf("%s_%s_rank%d_step", k.header.Task, unsafe.ReplaceAllString(k.header.Method, "_"), k.header.Rank)
}

func (k *keeper) path(step int) string {
	return filepath.Join(k.Dir, k.prefix()+strconv.Itoa(step)+".ckpt")
}

// steps lists the checkpoints of this rank, ascending.
func (k *keeper) steps() ([]int, error) {
	files, err := os.ReadDir(k.Dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	var steps []int
	for _, f := range files {
		rest, ours := strings.CutPrefix(f.Name(), k.prefix())
		if n, err := strconv.Atoi(strings.TrimSuffix(rest, ".ckpt")); ours && err == nil && strings.HasSuffix(rest, ".ckpt") {
			steps = append(steps, n)
		}
	}
	slices.Sort(steps)
	return steps, err
}

// keep saves w when it is time to, after done steps.
func (k *keeper) keep(done, all int, w *replica) error {
	if k.Dir == "" || done%k.Every != 0 && done != all {
		return nil
	}
	entries, err := w.save()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(k.Dir, 0o777); err != nil {
		return err
	}
	h := k.header
	h.Step = done
	if err := checkpoint.Write(k.path(done), h, entries); err != nil {
		return err
	}
	steps, err := k.steps()
	if err != nil {
		return err
	}
	for _, old := range steps[:max(0, len(steps)-2)] {
		if err := os.Remove(k.path(old)); err != nil {
			return err
		}
	}
	return nil
}

// resume puts w where the newest checkpoint that all ranks have left it, and returns the next step.
func (k *keeper) resume(ctx context.Context, seat Seat, w *replica) (step int, err error) {
	if !k.Resume {
		return 0, nil
	}
	mine, err := k.steps()
	if err != nil {
		return 0, err
	}
	var raw []byte
	for _, n := range mine {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(n))
	}
	msgs, err := seat.Control.AllGather(ctx, raw)
	if err != nil {
		return 0, err
	}
	have := map[int]int{}
	for r, b := range msgs {
		if len(b)%8 != 0 {
			return 0, fmt.Errorf("eval: rank %d lists its checkpoints in %d bytes", r, len(b))
		}
		for ; len(b) > 0; b = b[8:] {
			have[int(binary.LittleEndian.Uint64(b))]++
		}
	}
	for n, ranks := range have {
		if ranks == len(msgs) {
			step = max(step, n)
		}
	}
	if step == 0 {
		return 0, nil
	}
	h, entries, err := checkpoint.Read(k.path(step))
	if err != nil {
		return 0, err
	}
	if err := h.Match(k.header); err != nil {
		return 0, fmt.Errorf("%s: %w", k.path(step), err)
	}
	if !slices.EqualFunc(h.Layout, k.header.Layout, slices.Equal[[]int]) || h.Step != step {
		return 0, fmt.Errorf("%s: it is of step %d with buckets %v, want step %d with %v", k.path(step), h.Step, h.Layout, step, k.header.Layout)
	}
	if err := w.restore(entries); err != nil {
		return 0, fmt.Errorf("%s: %w", k.path(step), err)
	}
	return step, nil
}

// vectors are the float32 state of a replica besides its compressors', by name.
func (w *replica) vectors() map[string][]float32 {
	all := map[string][]float32{}
	for i, p := range w.net.Params() {
		all["weight/"+p.Name], all["optimizer/"+p.Name] = p.W, w.opt.u[i]
	}
	for _, b := range w.net.Buffers() {
		all["buffer/"+b.Name] = b.X
	}
	return all
}

const method = "method/"

// save is everything that the replica remembers between steps.
func (w *replica) save() (map[string][]byte, error) {
	snap, err := w.hook.Save()
	if err != nil {
		return nil, err
	}
	w.count() // what was late has arrived
	entries := map[string][]byte{"carried": floatBytes(w.net.Carried())}
	if entries["tally"], err = binary.Append(nil, binary.LittleEndian, w.t); err != nil {
		return nil, err
	}
	for name, x := range snap {
		entries[method+name] = x
	}
	for name, x := range w.vectors() {
		entries[name] = floatBytes(x)
	}
	return entries, nil
}

// restore is the reverse of save. Nothing changes unless everything is there.
func (w *replica) restore(entries map[string][]byte) error {
	vectors := w.vectors()
	for name, x := range vectors {
		if b, ok := entries[name]; !ok || len(b) != 4*len(x) {
			return fmt.Errorf("%q has %d bytes, want %d", name, len(b), 4*len(x))
		}
	}
	t := w.t
	if n, err := binary.Decode(entries["tally"], binary.LittleEndian, &t); err != nil || n != len(entries["tally"]) {
		return fmt.Errorf("\"tally\" has %d bytes", len(entries["tally"]))
	}
	if len(entries["carried"])%4 != 0 {
		return fmt.Errorf("\"carried\" has %d bytes", len(entries["carried"]))
	}
	snap := compress.Snapshot{}
	for name, x := range entries {
		if of, ok := strings.CutPrefix(name, method); ok {
			snap[of] = x
		}
	}
	if err := w.hook.Restore(snap); err != nil {
		return err
	}
	carried := make([]float32, len(entries["carried"])/4)
	readFloats(carried, entries["carried"])
	if err := w.net.SetCarried(carried); err != nil {
		return err
	}
	for name, x := range vectors {
		readFloats(x, entries[name])
	}
	w.t = t
	return nil
}

func floatBytes(x []float32) []byte {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func readFloats(x []float32, b []byte) {
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
}

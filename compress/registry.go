package compress

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/gradpress/gradpress/kernels"
)

// Memory says who remembers what was not sent.
type Memory uint8

// Own: the method itself. Feedback: WithFeedback around it. None: nobody, for methods that are unbiased or send everything.
const (
	Own Memory = iota
	Feedback
	None
)

// Registry knows methods by name. The zero value is empty.
type Registry struct{ entries []entry }

type entry struct {
	name, doc string
	def       any // a config struct
	make      func(cfg any) (Method, error)
}

// Method is an algorithm with its settings, ready to serve Sets.
type Method struct {
	Name string // in the registry
	Text string // as it was written, with settings
	// New makes a compressor for a Set, with feedback where the method wants it.
	New func(Set) (Compressor, error)
	// Across says that New must see all tensors that it serves as one Set: it chooses between them.
	Across bool
	// Small serves the tensors that are too small for New, all of them as one Set; nil leaves them dense.
	Small func(Set) (Compressor, error)
	// Momentum is what the method applies itself: the optimizer must then have none, and dense tensors get theirs in the hook.
	Momentum Momentum
	// Warmup is how many steps the method takes to reach its ratio.
	Warmup int
	// Transparent says that non-finite values pass through the method as they would through a plain mean, and leave no trace.
	Transparent bool
	// Config is the typed struct behind the settings.
	Config any
}

// Validator is a config that checks its values. The error names the key and the range.
type Validator interface{ Validate() error }

// MomentumOwner is a config of a method that applies momentum itself.
type MomentumOwner interface{ OwnMomentum() Momentum }

// Pooler is a config that can say how the tensors are served that are too small by themselves.
type Pooler[C any] interface{ Pool() (small C, ok bool) }

// Register adds an algorithm under a name. def holds the defaults; its exported fields tagged `key:"..." doc:"..."` are the
// settings. mk serves a Set as the config says.
func Register[C any](r *Registry, name, doc string, def C, m Memory, mk func(C, Set) (Compressor, error)) {
	if _, dup := r.find(name); dup {
		panic("compress: method " + name + " registered twice")
	}
	build := func(cfg any) (Method, error) {
		c := cfg.(C)
		if v, ok := cfg.(Validator); ok {
			if err := v.Validate(); err != nil {
				return Method{}, err
			}
		}
		method := Method{Name: name, Config: cfg}
		if o, ok := cfg.(MomentumOwner); ok {
			method.Momentum = o.OwnMomentum()
		}
		if o, ok := cfg.(interface{ WarmupSteps() int }); ok {
			method.Warmup = o.WarmupSteps()
		}
		if o, ok := cfg.(interface{ Transparent() bool }); ok {
			method.Transparent = o.Transparent()
		}
		if o, ok := cfg.(interface{ AcrossTensors() bool }); ok {
			method.Across = o.AcrossTensors()
		}
		serve := func(c C) func(t Set) (Compressor, error) {
			return func(t Set) (Compressor, error) {
				if err := t.Check(); err != nil {
					return nil, err
				}
				inner, err := mk(c, t)
				if err != nil || m != Feedback {
					return inner, err
				}
				return WithFeedback(inner, t)
			}
		}
		method.New = serve(c)
		if o, ok := cfg.(Pooler[C]); ok {
			if small, ok := o.Pool(); ok {
				method.Small = serve(small)
			}
		}
		return method, nil
	}
	r.entries = append(r.entries, entry{name, doc, def, build})
}

func (r *Registry) find(name string) (entry, bool) {
	for _, e := range r.entries {
		if e.name == name {
			return e, true
		}
	}
	return entry{}, false
}

// Names lists the methods in order of registration.
func (r *Registry) Names() []string {
	names := make([]string, len(r.entries))
	for i, e := range r.entries {
		names[i] = e.name
	}
	return names
}

// ParseError is a method string that cannot be used: the word that is wrong and what would be right.
type ParseError struct{ Text, Reason string }

func (e *ParseError) Error() string { return fmt.Sprintf("method %q: %s", e.Text, e.Reason) }

// Setting is one key=value.
type Setting struct{ Key, Value string }

// Parse reads a method string: name, or name:key=value,key=value. Settings in prefer replace the defaults of the keys that the
// method has; what text says wins. Errors are *ParseError.
func (r *Registry) Parse(text string, prefer ...Setting) (Method, error) {
	name, rest, colon := strings.Cut(text, ":")
	e, ok := r.find(name)
	if !ok {
		return Method{}, &ParseError{text, fmt.Sprintf("no method %q; there are %s", name, strings.Join(r.Names(), ", "))}
	}
	cfg := reflect.New(reflect.TypeOf(e.def)).Elem()
	cfg.Set(reflect.ValueOf(e.def))
	for _, s := range prefer {
		if f, ok := field(cfg, s.Key); ok {
			if err := set(f, s.Value); err != nil {
				return Method{}, &ParseError{text, fmt.Sprintf("%s=%s: %v", s.Key, s.Value, err)}
			}
		}
	}
	if colon {
		given := map[string]bool{}
		for _, pair := range strings.Split(rest, ",") {
			key, value, eq := strings.Cut(pair, "=")
			f, ok := field(cfg, key)
			switch {
			case !ok && len(keys(cfg)) == 0:
				return Method{}, &ParseError{text, fmt.Sprintf("%s has no settings", name)}
			case !ok:
				return Method{}, &ParseError{text, fmt.Sprintf("no setting %q; %s has %s", key, name, strings.Join(keys(cfg), ", "))}
			case !eq:
				return Method{}, &ParseError{text, fmt.Sprintf("setting %q needs a value: %s=...", key, key)}
			case given[key]:
				return Method{}, &ParseError{text, fmt.Sprintf("setting %q is given twice", key)}
			}
			given[key] = true
			if err := set(f, value); err != nil {
				return Method{}, &ParseError{text, fmt.Sprintf("%s=%s: %v", key, value, err)}
			}
		}
	}
	m, err := e.make(cfg.Interface())
	if err != nil {
		return Method{}, &ParseError{text, err.Error()}
	}
	m.Text = text
	return m, nil
}

// Description is what a person needs to know of a method.
type Description struct {
	Name, Doc string
	Settings  []SettingDoc
}

// SettingDoc describes one key.
type SettingDoc struct{ Key, Default, Doc string }

// Describe lists every method with its settings, read from the config structs.
func (r *Registry) Describe() []Description {
	all := make([]Description, len(r.entries))
	for i, e := range r.entries {
		all[i] = Description{Name: e.name, Doc: e.doc}
		cfg := reflect.ValueOf(e.def)
		for j := range cfg.NumField() {
			f := cfg.Type().Field(j)
			if key := f.Tag.Get("key"); key != "" {
				all[i].Settings = append(all[i].Settings, SettingDoc{key, fmt.Sprint(cfg.Field(j)), f.Tag.Get("doc")})
			}
		}
	}
	return all
}

func keys(cfg reflect.Value) []string {
	var all []string
	for i := range cfg.NumField() {
		if k := cfg.Type().Field(i).Tag.Get("key"); k != "" {
			all = append(all, k)
		}
	}
	return all
}

func field(cfg reflect.Value, key string) (reflect.Value, bool) {
	for i := range cfg.NumField() {
		if k := cfg.Type().Field(i).Tag.Get("key"); k != "" && k == key {
			return cfg.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// set parses value into f. A type that implements encoding.TextUnmarshaler parses itself.
func set(f reflect.Value, value string) error {
	if u, ok := f.Addr().Interface().(interface{ UnmarshalText([]byte) error }); ok {
		return u.UnmarshalText([]byte(value))
	}
	switch f.Kind() {
	case reflect.Bool:
		b, err := strconv.ParseBool(value)
		if err != nil {
			return errors.New("want true or false")
		}
		f.SetBool(b)
	case reflect.Float64:
		x, err := strconv.ParseFloat(value, 64)
		if err != nil || x != x || x-x != 0 {
			return errors.New("want a finite number")
		}
		f.SetFloat(x)
	case reflect.Int:
		n, err := strconv.Atoi(value)
		if err != nil {
			return errors.New("want a whole number")
		}
		f.SetInt(int64(n))
	default:
		panic("compress: setting of type " + f.Type().String())
	}
	return nil
}

// Dense is the baseline as a Method: every gradient whole, with a momentum that the method owns, or none.
func Dense(m Momentum) Method {
	text := "dense"
	if m.M != 0 {
		text = fmt.Sprintf("dense, momentum %g, nesterov %v", m.M, m.Nesterov)
	}
	return Method{Name: "dense", Text: text, Momentum: m, Transparent: m.M == 0,
		New: func(t Set) (Compressor, error) { return NewDense(t, m, kernels.F32) }}
}

type denseConfig struct{}

func (denseConfig) Transparent() bool { return true }

// RegisterDense adds the baseline.
func RegisterDense(r *Registry) {
	Register(r, "dense", "every gradient whole, in 32 bits: the baseline", denseConfig{}, None, func(_ denseConfig, t Set) (Compressor, error) {
		return NewDense(t, Momentum{}, kernels.F32)
	})
}

// Package shapes lists the parameter tensors of well-known models by name and shape, so that compression can be measured on their true
// layers without the models themselves.
package shapes

import (
	"fmt"
	"strings"
)

// Tensor is one parameter tensor. Shape is row-major.
type Tensor struct {
	Name  string
	Shape []int
}

// Len is the number of elements.
func (t Tensor) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Model is every trainable tensor of a model, in the order of the forward pass.
type Model struct {
	Name    string
	About   string // which variant it is
	Tensors []Tensor
	// Paper is the payload ratio that Lin et al. (ICLR 2018) report for DGC on this model or the nearest to it; 0 is none.
	Paper float64
}

// Len is the number of parameters.
func (m Model) Len() int {
	n := 0
	for _, t := range m.Tensors {
		n += t.Len()
	}
	return n
}

// All lists the models, in the order in which they are reported.
func All() []Model {
	return []Model{AlexNet(), VGG16(), ResNet50(), ResNet110(), PTBLSTM(), DeepSpeech(), GPT2()}
}

// Names lists the names of all models.
func Names() string {
	var names []string
	for _, m := range All() {
		names = append(names, m.Name)
	}
	return strings.Join(names, ", ")
}

// Find returns the model of that name.
func Find(name string) (Model, error) {
	for _, m := range All() {
		if m.Name == name {
			return m, nil
		}
	}
	return Model{}, fmt.Errorf("no model %q; there are %s", name, Names())
}

// list collects tensors.
type list []Tensor

func (l *list) add(name string, shape ...int) { *l = append(*l, Tensor{name, shape}) }

// affine adds a weight and the bias of its rows.
func (l *list) affine(name string, shape ...int) {
	l.add(name+".weight", shape...)
	l.add(name+".bias", shape[0])
}

// norm adds the scale and shift of a normalisation.
func (l *list) norm(name string, channels int) { l.affine(name, channels) }

// Renders the templates of a Helm chart with Go's template engine and the functions of sprig, as Helm does, where Helm
// itself is not installed. Reads JSON from stdin: files (name to text), the objects Values, Release and Chart, and the
// objects of a cluster.
// Writes JSON: name of each template to its text.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"github.com/ghodss/yaml"
)

type input struct {
	Files   map[string]string
	Values  map[string]interface{}
	Release map[string]interface{}
	Chart   map[string]interface{}
	Cluster []map[string]interface{}
}

func main() {
	var chart input
	decoder := json.NewDecoder(os.Stdin)
	if err := decoder.Decode(&chart); err != nil {
		stop(err)
	}
	rendered, err := render(chart)
	if err != nil {
		stop(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(rendered); err != nil {
		stop(err)
	}
}

func stop(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func render(chart input) (map[string]string, error) {
	root := template.New("chart").Option("missingkey=error")
	functions := sprig.TxtFuncMap()
	functions["include"] = func(name string, data interface{}) (string, error) {
		var text bytes.Buffer
		err := root.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return value, errors.New(message)
		}
		return value, nil
	}
	// as of a cluster: an empty object if there is no such one
	functions["lookup"] = func(version, kind, namespace, name string) map[string]interface{} {
		for _, object := range chart.Cluster {
			metadata, _ := object["metadata"].(map[string]interface{})
			if object["apiVersion"] == version && object["kind"] == kind && metadata["name"] == name {
				return object
			}
		}
		return map[string]interface{}{}
	}
	root.Funcs(functions)
	for name, text := range chart.Files {
		if _, err := root.New(name).Parse(text); err != nil {
			return nil, err
		}
	}
	context := map[string]interface{}{"Values": chart.Values, "Release": chart.Release, "Chart": chart.Chart}
	rendered := map[string]string{}
	for name := range chart.Files {
		if strings.HasSuffix(name, ".tpl") {
			continue
		}
		var text bytes.Buffer
		if err := root.ExecuteTemplate(&text, name, context); err != nil {
			return nil, err
		}
		rendered[name] = text.String()
	}
	return rendered, nil
}

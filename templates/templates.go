// Package templates holds the Argo WorkflowTemplate of the steps and the rights that they need, as files that people can
// read, lint and install. The generator embeds them, so that there is one source for both ways.
package templates

import _ "embed"

// Steps is the WorkflowTemplate atewf-steps as YAML.
//
//go:embed steps.yaml
var Steps []byte

// RBAC is the service account of a roll with its roles as YAML, several documents.
//
//go:embed rbac.yaml
var RBAC []byte

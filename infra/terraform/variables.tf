variable "name" {
  description = "The name of the stack, and of its table."
  type        = string
}

variable "template_file" {
  description = "The template, as `zae-limiter cfn-template` prints it; null for the one beside the module."
  type        = string
  default     = null
}

variable "tags" {
  description = "The tags of the stack and its resources."
  type        = map(string)
  default     = {}
}
